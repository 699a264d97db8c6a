-- elect
-- One call of the election: list the caller, and take, renew or release the key of the leader.
--
-- KEYS  leader: epoch "\n" name, while its lease lasts;  epochs: the highest that was given
--       members: hash of name -> until when it is listed (ms, by this server's clock) "\n" address
-- ARGV  look, acquire, renew or release;  name;  address;  epoch: to acquire the highest that is known, else the led one
--       ms of a lease;  ms for which a member is listed
--
-- Returns the leader's name ("": none), its epoch, `epochs` as it was before, then name and address of every member.
-- A member that acquires what it has already (the first answer was lost) has its lease renewed.
local leader, epochs, members = KEYS[1], KEYS[2], KEYS[3]
local ask, name, epoch = ARGV[1], ARGV[2], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local before = tonumber(redis.call('GET', epochs) or '0')
local held_epoch, holder = string.match(redis.call('GET', leader) or '', '^(%d+)\n(.*)$')

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

if ask == 'release' then
  redis.call('HDEL', members, name)
else
  redis.call('HSET', members, name, string.format('%.0f', now_ms + tonumber(ARGV[6])) .. '\n' .. ARGV[3])
  redis.call('PEXPIRE', members, ARGV[6])
end
local answer = {holder or '', tonumber(held_epoch or '0'), before}
local all = redis.call('HGETALL', members)
for at = 1, #all, 2 do
  local until_ms, address = string.match(all[at + 1], '^(%d+)\n(.*)$')
  if tonumber(until_ms) <= now_ms then
    redis.call('HDEL', members, all[at])
  else
    answer[#answer + 1] = all[at]
    answer[#answer + 1] = address
  end
end
return answer
