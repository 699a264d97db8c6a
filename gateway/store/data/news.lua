-- Return the documents that arrived after a cursor, up to a limit; the server's epoch, revision and clock.
--
-- KEYS  documents: hash of kind/name -> version "\n" body (no body: deleted)
--       arrivals: sorted set of kind/name by arrival;  counters: hash of epoch, revision, arrival;  settling
-- ARGV  cursor;  maximum number of documents;  an epoch for a server that has none;  ms that it then settles
--
-- A server without an epoch is new or has lost all data. While it settles, gateways write back what they have, and no
-- change is accepted.
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
