-- Write learned data, unless something newer of that name is stored.
--
-- KEYS  learnt: hash of name -> seconds since 1970 "\n" body
-- ARGV  name;  at_s;  body
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there or tonumber(string.match(there, '^[^\n]+')) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '\n' .. ARGV[3])
end
return redis.status_reply('OK')
