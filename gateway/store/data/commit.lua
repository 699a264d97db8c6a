-- Apply all changes with their audit entries, or none.
--
-- KEYS  documents, arrivals, counters, settling (see news.lua);  deleted: sorted set of kind/name by version
--       audit: sorted set of entries (JSON) by revision
-- ARGV  epoch and revision as the gateway knows them;  how many audit entries and deletions are kept
--       "at_s", "actor" and "replica" of the audit entries (JSON);  when the gateway gives up, by this server's clock
--       for each change: kind/name, "kind" and "name" (JSON; "": it has no audit entry), the version it must have
--       ("": any), body ("": delete)
--
-- Returns {'done', revision of the first change}, or {'conflict', index of the change, present version}, {'settling',
-- ms}, {'stale'}: the server is another one or has lost data since the gateway read it; or {'late'}: the deadline has
-- passed, so the gateway has reported a failure (the server was suspended).
local documents, arrivals, counters, settling, deleted, audit = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local FIRST, WIDTH = 7, 4
local counted = redis.call('HMGET', counters, 'epoch', 'revision')
local revision = tonumber(counted[2] or '0')
if counted[1] ~= ARGV[1] or revision < tonumber(ARGV[2]) then
  return {'stale'}
end
local clock = redis.call('TIME')
if tonumber(clock[1]) + tonumber(clock[2]) / 1e6 > tonumber(ARGV[6]) then
  return {'late'}
end
local left_ms = redis.call('PTTL', settling)
if left_ms > 0 then
  return {'settling', left_ms}
end

local before = {}
for at = FIRST, #ARGV, WIDTH do
  local value = redis.call('HGET', documents, ARGV[at])
  local version, body = '0', ''
  if value then
    version, body = string.match(value, '^(%d+)\n(.*)$')
    if body == '' then
      version = '0'
    end
  end
  if ARGV[at + 2] ~= '' and ARGV[at + 2] ~= version then
    return {'conflict', (at - FIRST) / WIDTH, tonumber(version)}
  end
  before[at] = body
end

local function json(body)
  return body == '' and 'null' or body
end

local first = revision + 1
for at = FIRST, #ARGV, WIDTH do
  local name, after = ARGV[at], ARGV[at + 3]
  revision = redis.call('HINCRBY', counters, 'revision', 1)
  local text = string.format('%.0f', revision)
  redis.call('HSET', documents, name, text .. '\n' .. after)
  redis.call('ZADD', arrivals, redis.call('HINCRBY', counters, 'arrival', 1), name)
  redis.call('ZREM', deleted, name)
  local action = before[at] == '' and 'create' or 'update'
  if after == '' then
    redis.call('ZADD', deleted, revision, name)
    action = 'delete'
  end
  if ARGV[at + 1] ~= '' then
    redis.call('ZADD', audit, revision, '{"revision":' .. text .. ',"action":"' .. action .. '",' .. ARGV[5] .. ',' ..
      ARGV[at + 1] .. ',"before":' .. json(before[at]) .. ',"after":' .. json(after) .. '}')
  end
end

redis.call('ZREMRANGEBYRANK', audit, 0, -1 - tonumber(ARGV[3]))
for _, name in ipairs(redis.call('ZRANGE', deleted, 0, -1 - tonumber(ARGV[4]))) do
  redis.call('ZREM', deleted, name)
  redis.call('ZREM', arrivals, name)
  redis.call('HDEL', documents, name)
end
return {'done', first}
