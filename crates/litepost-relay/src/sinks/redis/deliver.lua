-- Adds events to streams, each once, and remembers that, in one atomic step.
--
-- KEYS[1] the lane's state (see open.lua), KEYS[2..] the streams of this batch
-- ARGV    token, time (ms), 1 when in order, the position that must have been reached, MAXLEN or '', 1 for NOMKSTREAM;
--         then for each event: seq, id, line, which stream, how many fields and values follow, those
--
-- In order, everything up to the remembered position is there already, and the first failure ends the batch: the
-- position must never pass an event that is not there. Out of order, a failure ends its line only.
-- Answers {'FENCED', token}, or one word per event: 'ok', '-' (not tried), 'none' (no such stream), or an error's text.
local state, now, in_order = KEYS[1], ARGV[2], ARGV[3] == '1'
local token = redis.call('HGET', state, 'token')
if token ~= ARGV[1] then
  return {'FENCED', token or '0'}
end
local last, last_id = tonumber(redis.call('HGET', state, 'seq')), nil
local reached = last >= tonumber(ARGV[4])
-- token, seq and id are always there.
local exceptions = redis.call('HLEN', state) > 3

-- The highest entry of each stream: ids must ascend.
local tops = {}
local function top(key)
  if not tops[key] then
    tops[key] = {0, 0}
    local info = redis.pcall('XINFO', 'STREAM', key)
    for i = 1, info.err and 0 or #info, 2 do
      if info[i] == 'last-generated-id' then
        local ms, n = string.match(info[i + 1], '^(%d+)-(%d+)$')
        tops[key] = {tonumber(ms), tonumber(n)}
      end
    end
  end
  return tops[key]
end

local answer, failed, stopped, at = {}, {}, not reached, 7
while at <= #ARGV do
  local seq, id, line = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local key, count = KEYS[1 + tonumber(ARGV[at + 3])], tonumber(ARGV[at + 4])
  local word = 'ok'
  local there = (in_order and seq <= last) or (exceptions and redis.call('HEXISTS', state, 'e:' .. ARGV[at]) == 1)
  if stopped or failed[line] then
    word = '-'
  elseif not there then
    local high = top(key)
    if seq > high[1] then
      high = {seq, 0}
    else
      high = {high[1], high[2] + 1}
    end
    local command = {'XADD', key}
    if ARGV[6] == '1' then
      command[#command + 1] = 'NOMKSTREAM'
    end
    if ARGV[5] ~= '' then
      command[#command + 1] = 'MAXLEN'
      command[#command + 1] = '~'
      command[#command + 1] = ARGV[5]
    end
    command[#command + 1] = string.format('%.0f-%.0f', high[1], high[2])
    for i = at + 5, at + 4 + count do
      command[#command + 1] = ARGV[i]
    end
    local added = redis.pcall(unpack(command))
    if not added then
      word = 'none'
    elseif type(added) == 'table' and added.err then
      word = added.err
    else
      tops[key] = high
    end
    if word ~= 'ok' then
      failed[line] = true
      -- What is no fault of the one stream is one of the server.
      stopped = in_order or not (word == 'none' or string.find(word, 'WRONGTYPE', 1, true))
    elseif in_order then
      last, last_id = seq, id
    else
      redis.call('HSET', state, 'e:' .. ARGV[at], now .. ' ' .. id)
      exceptions = true
    end
  end
  answer[#answer + 1] = word
  at = at + 5 + count
end
if last_id then
  redis.call('HSET', state, 'seq', string.format('%.0f', last), 'id', last_id)
end
return answer
