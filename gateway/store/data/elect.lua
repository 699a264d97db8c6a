-- elect
-- One call of the election: list the caller, and take, renew or release the key of the leader.
--
-- KEYS  leader: epoch "\n" name, while its lease lasts;  epochs: the highest that was given
--       members: hash of name -> until when it is listed (ms, by this server's clock) "\n" address
--       reports: hash of name -> number of its last call, the epoch whose leader and all before it helps no more,
--                1 if that leader's process has ended, ms from when on it is so; with blanks between
--       witnesses: epoch "\n" ms of its last renewal "\n" names of the members a majority of which may renew it besides
-- ARGV  look, acquire, renew or release;  name;  address;  epoch: to acquire the highest that is known, else the led one;
--       to release 0 is the last call of a process
--       ms of a lease;  ms for which a member is listed;  number of the call;  what it reports: epoch;  0 or 1
--       epoch and names of witnesses: to renew those to agree on, to acquire the last that are known
--       ms after the last renewal for which members alone may have renewed a lease, with a margin
--
-- Returns the leader's name ("": none), its epoch, `epochs` as it was before, witnesses, then of every member its name,
-- its address and for how many ms it has not called. A member that acquires what it has already (the first answer was
-- lost) has its lease renewed; where it knows that epoch, it led and left, and a renewal was read late, as by a server
-- that was frozen: it gets a new epoch. A leader whose key ended, while no other had it, has it again when it renews. A
-- leader that all others that are listed saw end has its key no longer. A call that comes after a later one of its caller
-- only looks.
local leader, epochs, members, reports, witnesses = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ask, name, epoch, listed_ms = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local before = tonumber(redis.call('GET', epochs) or '0')
local held_epoch, holder = string.match(redis.call('GET', leader) or '', '^(%d+)\n(.*)$')
held_epoch = tonumber(held_epoch or '0')

local function report_of(member)
  local report = redis.call('HGET', reports, member) or ''
  local number, free, ended, from_ms = string.match(report, '^(%d+) (%d+) (%d) (%d+)$')
  local holds = from_ms and tonumber(from_ms) <= now_ms
  return tonumber(number or '0'), holds and tonumber(free) or 0, ended == '1'
end

local function agree(on_epoch, names)
  if names == '' then
    redis.call('DEL', witnesses)
  else
    redis.call('SET', witnesses, string.format('%.0f\n%.0f\n', on_epoch, now_ms) .. names)
  end
end

if tonumber(ARGV[7]) <= report_of(name) then
  ask = 'look'
elseif ask == 'release' then
  redis.call('HDEL', members, name)
  redis.call('HDEL', reports, name)
  if epoch == 0 then -- it helps no leader any more, once what it has granted has ended
    redis.call('HSET', reports, name, string.format('%s %.0f 0 %.0f', ARGV[7], before, now_ms + tonumber(ARGV[5])))
    redis.call('PEXPIRE', reports, ARGV[12])
  end
else
  redis.call('HSET', members, name, string.format('%.0f', now_ms + listed_ms) .. '\n' .. ARGV[3])
  redis.call('PEXPIRE', members, listed_ms)
  redis.call('HSET', reports, name, ARGV[7] .. ' ' .. ARGV[8] .. ' ' .. ARGV[9] .. ' 0')
  redis.call('PEXPIRE', reports, ARGV[12])
end

local listed, all = {}, redis.call('HGETALL', members)
local has_ended = holder and ARGV[9] == '1'
for at = 1, #all, 2 do
  local until_ms, address = string.match(all[at + 1], '^(%d+)\n(.*)$')
  if tonumber(until_ms) <= now_ms then
    redis.call('HDEL', members, all[at])
  else
    listed[#listed + 1] = {all[at], address, math.max(0, now_ms + listed_ms - tonumber(until_ms))}
    local _, free, ended = report_of(all[at])
    has_ended = has_ended and (all[at] == holder or (ended and free >= held_epoch))
  end
end
local ended_holder = has_ended and holder
if has_ended then
  redis.call('DEL', leader)
  held_epoch, holder = 0, nil
end

local function may_acquire()
  if before < epoch and redis.call('EXISTS', witnesses) == 0 then
    agree(tonumber(ARGV[10]), ARGV[11])
  end
  local of_epoch, renewed_ms, names = string.match(redis.call('GET', witnesses) or '', '^(%d+)\n(%d+)\n(.*)$')
  if not of_epoch or now_ms - tonumber(renewed_ms) >= tonumber(ARGV[12]) then
    return true
  end
  local count, free_count = 0, 0
  for each in string.gmatch(names, '[^\n]+') do
    local _, free = report_of(each)
    count = count + 1
    if each == ended_holder or free >= tonumber(of_epoch) then
      free_count = free_count + 1
    end
  end
  return 2 * free_count >= count
end

local has_left = holder == name and held_epoch <= epoch
if ask == 'acquire' and (has_left or not holder) then
  if has_left or may_acquire() then
    held_epoch, holder = math.max(before, epoch) + 1, name
    redis.call('SET', epochs, string.format('%.0f', held_epoch))
    redis.call('SET', leader, string.format('%.0f\n', held_epoch) .. name, 'PX', ARGV[5])
    redis.call('DEL', reports, witnesses)
  end
elseif ask == 'acquire' and holder == name then
  redis.call('PEXPIRE', leader, ARGV[5])
elseif ask == 'renew' and ((holder == name and held_epoch == epoch) or (not holder and before <= epoch)) then
  held_epoch, holder = epoch, name
  redis.call('SET', epochs, string.format('%.0f', epoch))
  redis.call('SET', leader, string.format('%.0f\n', epoch) .. name, 'PX', ARGV[5])
  agree(epoch, ARGV[11])
elseif ask == 'release' and holder == name and held_epoch == epoch then
  redis.call('DEL', leader, witnesses)
  held_epoch, holder = 0, nil
end

local answer = {holder or '', held_epoch, before, redis.call('GET', witnesses) or ''}
for _, each in ipairs(listed) do
  for _, value in ipairs(each) do
    answer[#answer + 1] = value
  end
end
return answer
