-- Ends a transaction of bare XADDs (see direct.rs): the position moves only when the last entry of each stream is there.
--
-- KEYS[1] the lane's state (see open.lua), KEYS[2..] the streams of the transaction
-- ARGV    seq and id of its last event, then the last id that it has added to each stream
--
-- Answers 'OK', or the name of a stream whose highest entry is another: the position stays where it is.
for at = 2, #KEYS do
  local info, top = redis.pcall('XINFO', 'STREAM', KEYS[at]), nil
  for i = 1, info.err and 0 or #info, 2 do
    if info[i] == 'last-generated-id' then
      top = info[i + 1]
    end
  end
  if top ~= ARGV[at + 1] then
    return KEYS[at]
  end
end
redis.call('HSET', KEYS[1], 'seq', ARGV[1], 'id', ARGV[2])
return 'OK'
