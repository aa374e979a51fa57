-- Takes a lane of an earlier split from whoever may still hold it, and answers what is remembered of it.
--
-- KEYS[1] the lane's state (see open.lua); made when it is not there, so that nobody makes it later with an older token
-- ARGV    token, up to where every lane is settled, time (ms), how long out-of-order events are remembered (ms)
--
-- Answers {seq, id, SEQ, ID, SEQ, ID ...}.
local state, token, settled = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HGET', state, 'token')
if not known then
  redis.call('HSET', state, 'token', ARGV[1], 'seq', '0', 'id', '')
elseif tonumber(known) < token then
  redis.call('HSET', state, 'token', ARGV[1])
end
local answer = {redis.call('HGET', state, 'seq'), redis.call('HGET', state, 'id')}
local all = redis.call('HGETALL', state)
for i = 1, #all, 2 do
  local seq = string.match(all[i], '^e:(%d+)$')
  if seq then
    local time, id = string.match(all[i + 1], '^(%d+) (.*)$')
    if tonumber(seq) <= settled and tonumber(time) < tonumber(ARGV[3]) - tonumber(ARGV[4]) then
      redis.call('HDEL', state, all[i])
    else
      answer[#answer + 1] = seq
      answer[#answer + 1] = id
    end
  end
end
return answer
