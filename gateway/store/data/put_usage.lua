-- Write usage: each total becomes the larger of the stored and the given one, so a repeated flush counts once.
--
-- KEYS  day: hash of row -> totals, like "1,20,0,7";  days: sorted set of days by number, like 20261120
-- ARGV  the day's number and name;  the first day that is kept;  the name of a day's hash up to the day
--       for each row: its name, and its totals
local day, days = KEYS[1], KEYS[2]
for at = 5, #ARGV, 2 do
  local there = redis.call('HGET', day, ARGV[at])
  local given = ARGV[at + 1]
  if there then
    local larger = {}
    local next_there = string.gmatch(there, '%d+')
    for total in string.gmatch(given, '%d+') do
      larger[#larger + 1] = string.format('%.0f', math.max(tonumber(total), tonumber(next_there())))
    end
    given = table.concat(larger, ',')
  end
  redis.call('HSET', day, ARGV[at], given)
end
redis.call('ZADD', days, ARGV[1], ARGV[2])
for _, old in ipairs(redis.call('ZRANGEBYSCORE', days, '-inf', '(' .. ARGV[3])) do
  redis.call('DEL', ARGV[4] .. old)
  redis.call('ZREM', days, old)
end
return redis.status_reply('OK')
