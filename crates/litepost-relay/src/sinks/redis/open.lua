-- Claims a lane of a destination: no older fencing token can add anything from here on. Answers what is remembered.
--
-- KEYS[1] the lane's state, a hash: token, seq and id of the last event added in order, and `e:SEQ` = `TIME ID` for each
--         that was added out of order
-- ARGV    token, acked (what a new state begins behind), time (ms), how long out-of-order events are remembered (ms),
--         1 when there must be a state
--
-- Answers {'FENCED', token}, {'LOST', ''}, or {'NEW' or 'KNOWN', seq, id, SEQ, ID, SEQ, ID ...}.
local state, token, acked = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HGET', state, 'token')
if known and tonumber(known) > token then
  return {'FENCED', known}
end
if not known and ARGV[5] == '1' then
  -- Made now, it would pass for the old one next time.
  return {'LOST', ''}
end
if not known then
  redis.call('HSET', state, 'token', ARGV[1], 'seq', ARGV[2], 'id', '')
  return {'NEW', ARGV[2], ''}
end
redis.call('HSET', state, 'token', ARGV[1])
local answer = {'KNOWN', redis.call('HGET', state, 'seq'), redis.call('HGET', state, 'id')}
local all = redis.call('HGETALL', state)
for i = 1, #all, 2 do
  local seq = string.match(all[i], '^e:(%d+)$')
  if seq then
    local time, id = string.match(all[i + 1], '^(%d+) (.*)$')
    if tonumber(seq) <= acked and tonumber(time) < tonumber(ARGV[3]) - tonumber(ARGV[4]) then
      redis.call('HDEL', state, all[i])
    else
      answer[#answer + 1] = seq
      answer[#answer + 1] = id
    end
  end
end
return answer
