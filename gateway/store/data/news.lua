-- What has come since a cursor, at most so much of it; whose server this is, how far it has counted, and its clock.
--
-- KEYS  documents: hash of kind/name -> version "\n" body (no body: deleted)
--       arrivals: sorted set of kind/name by arrival;  counters: hash of epoch, revision, arrival;  settling
-- ARGV  cursor;  how many documents at most;  an epoch for a server that has none;  how long it then settles, in ms
--
-- A server without an epoch has lost everything or is new. Gateways that know more put it back before anybody decides
-- anything: until they have had the time, no change is taken.
local documents, arrivals, counters, settling = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('HSETNX', counters, 'epoch', ARGV[3]) == 1 then
  redis.call('SET', settling, '1', 'PX', ARGV[4])
end
local counted = redis.call('HMGET', counters, 'epoch', 'revision')
local found = redis.call('ZRANGEBYSCORE', arrivals, '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local clock = redis.call('TIME')
local answer = {counted[1], counted[2] or '0', clock[1] .. '.' .. string.format('%06d', clock[2])}
for at = 1, #found, 2 do
  answer[#answer + 1] = found[at]
  answer[#answer + 1] = redis.call('HGET', documents, found[at])
  answer[#answer + 1] = found[at + 1]
end
return answer
