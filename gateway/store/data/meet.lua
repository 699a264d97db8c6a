-- Publish a message to the other replicas, unless there are messages that this one has not received.
--
-- KEYS  replicas: hash of name -> time (ms) "\n" message;  said: number of messages published by all replicas
-- ARGV  name;  message ("": only receive);  number of messages that this replica knows of;  ms that a message is kept
--
-- Returns {1, number of messages} where the message was published; else {0, number}, and for every other replica its
-- name, the age of its message in ms, and the message. So a replica publishes only if it has received all earlier
-- messages.
local replicas, said = KEYS[1], KEYS[2]
local count = redis.call('GET', said) or '0'
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
if count == ARGV[3] and ARGV[2] == '' then
  return {1, tonumber(count)}
end
if count == ARGV[3] then
  redis.call('HSET', replicas, ARGV[1], string.format('%.0f', now_ms) .. '\n' .. ARGV[2])
  count = redis.call('INCR', said)
  redis.call('PEXPIRE', replicas, ARGV[4])
  redis.call('PEXPIRE', said, ARGV[4])
  return {1, count}
end
local answer = {0, tonumber(count)}
local all = redis.call('HGETALL', replicas)
for at = 1, #all, 2 do
  local when_ms, word = string.match(all[at + 1], '^(%d+)\n(.*)$')
  local age_ms = math.max(0, now_ms - tonumber(when_ms))
  if age_ms > tonumber(ARGV[4]) then
    redis.call('HDEL', replicas, all[at])
  elseif all[at] ~= ARGV[1] then
    answer[#answer + 1] = all[at]
    answer[#answer + 1] = age_ms
    answer[#answer + 1] = word
  end
end
return answer
