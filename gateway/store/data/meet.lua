-- Say something to the other gateways, unless somebody has said something that this one has not heard.
--
-- KEYS  replicas: hash of name -> when (ms) "\n" word;  said: how often anything was said
-- ARGV  name;  word ("": only listen);  how often anything was said, as this gateway knows it;  how long a word is kept, in ms
--
-- Answers {1, how often} where it was said; else {0, how often}, and for each other name: it, its word's age in ms, its
-- word. So what a gateway says is said in the knowledge of all that was said before.
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
