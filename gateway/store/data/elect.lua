-- elect
-- One call of the election: list the caller, and take, renew or release the key of the leader.
--
-- KEYS  leader: epoch "\n" name, while its lease lasts;  epochs: the highest that was given
--       members: hash of name -> until when it is listed (ms, by this server's clock) "\n" address
--       ended: hash of name -> the last epoch whose leader has ended, as this member saw
-- ARGV  look, acquire, renew or release;  name;  address;  epoch: to acquire the highest that is known, else the led one
--       ms of a lease;  ms for which a member is listed;  epoch whose leader has ended, as the caller saw; 0: none
--
-- Returns the leader's name ("": none), its epoch, `epochs` as it was before, then of every member its name, its address
-- and for how many ms it has not called. A member that acquires what it has already (the first answer was lost) has its
-- lease renewed. A leader that all others that are listed saw end has its key no longer.
local leader, epochs, members, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ask, name, epoch, listed_ms = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local before = tonumber(redis.call('GET', epochs) or '0')
local held_epoch, holder = string.match(redis.call('GET', leader) or '', '^(%d+)\n(.*)$')

if ask == 'release' then
  redis.call('HDEL', members, name)
else
  redis.call('HSET', members, name, string.format('%.0f', now_ms + listed_ms) .. '\n' .. ARGV[3])
  redis.call('PEXPIRE', members, listed_ms)
end
local listed, all = {}, redis.call('HGETALL', members)
for at = 1, #all, 2 do
  local until_ms, address = string.match(all[at + 1], '^(%d+)\n(.*)$')
  if tonumber(until_ms) <= now_ms then
    redis.call('HDEL', members, all[at])
  else
    listed[#listed + 1] = {all[at], address, math.max(0, now_ms + listed_ms - tonumber(until_ms))}
  end
end

if ARGV[7] ~= '0' then
  redis.call('HSET', ended, name, ARGV[7])
  redis.call('PEXPIRE', ended, listed_ms)
  local has_ended = ARGV[7] == held_epoch
  for _, each in ipairs(listed) do
    has_ended = has_ended and (each[1] == holder or redis.call('HGET', ended, each[1]) == held_epoch)
  end
  if has_ended then
    redis.call('DEL', leader)
    held_epoch, holder = nil, nil
  end
end

if ask == 'acquire' and not holder then
  held_epoch, holder = string.format('%.0f', math.max(before, epoch) + 1), name
  redis.call('SET', epochs, held_epoch)
  redis.call('SET', leader, held_epoch .. '\n' .. name, 'PX', ARGV[5])
elseif holder == name and (ask == 'acquire' or (ask == 'renew' and tonumber(held_epoch) == epoch)) then
  redis.call('PEXPIRE', leader, ARGV[5])
elseif ask == 'release' and holder == name and tonumber(held_epoch) == epoch then
  redis.call('DEL', leader)
  held_epoch, holder = nil, nil
end

local answer = {holder or '', tonumber(held_epoch or '0'), before}
for _, each in ipairs(listed) do
  for _, value in ipairs(each) do
    answer[#answer + 1] = value
  end
end
return answer
