-- What stands where the next batch goes, so that its XADDs can be sent without a script (see direct.rs).
--
-- KEYS[1] the lane's state (see open.lua), KEYS[2..] streams
-- ARGV    token
--
-- Answers nothing when the state holds anything else than it does in plain order: another token, events behind the position
-- that were added out of order, or so many of those that looking through them takes its time. Otherwise {seq, TOP, TOP ...}:
-- the highest id that a stream has ever had, '' when there is no such key, '-' when it is no stream.
local state = redis.call('HMGET', KEYS[1], 'token', 'seq')
-- token, seq and id are always there.
local exceptions = redis.call('HLEN', KEYS[1]) - 3
if state[1] ~= ARGV[1] or exceptions > 100 then
  return {}
end
if exceptions > 0 then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local seq = string.match(field, '^e:(%d+)$')
    if seq and tonumber(seq) > tonumber(state[2]) then
      return {}
    end
  end
end
local answer = {state[2]}
for at = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[at]).ok
  local top = kind == 'none' and '' or '-'
  if kind == 'stream' then
    local info = redis.call('XINFO', 'STREAM', KEYS[at])
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        top = info[i + 1]
      end
    end
  end
  answer[at] = top
end
return answer
