-- Merge documents and audit entries of another copy: the higher version wins, and the next revision is above all.
--
-- KEYS  documents, arrivals, counters, deleted, audit (see commit.lua)
-- ARGV  how many documents;  for each: kind/name, version, body ("": deleted)
--       then for each audit entry: its revision, and it (JSON)
local documents, arrivals, counters, deleted, audit = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local highest = tonumber(redis.call('HGET', counters, 'revision') or '0')
local last = 1 + 3 * tonumber(ARGV[1])
for at = 2, last, 3 do
  local name, version, body = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local there = redis.call('HGET', documents, name)
  if not there or tonumber(string.match(there, '^%d+')) < version then
    redis.call('HSET', documents, name, ARGV[at + 1] .. '\n' .. body)
    redis.call('ZADD', arrivals, redis.call('HINCRBY', counters, 'arrival', 1), name)
    redis.call('ZREM', deleted, name)
    if body == '' then
      redis.call('ZADD', deleted, version, name)
    end
  end
  highest = math.max(highest, version)
end
for at = last + 1, #ARGV, 2 do
  redis.call('ZADD', audit, ARGV[at], ARGV[at + 1])
  highest = math.max(highest, tonumber(ARGV[at]))
end
redis.call('HSET', counters, 'revision', string.format('%.0f', highest))
return redis.status_reply('OK')
