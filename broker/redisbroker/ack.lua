-- Acknowledges entries of this session, and returns those that are not its own.
-- ARGV: group, session, entries in their order
local n = #ARGV - 2
local own, acked, lost = {}, {}, {}
if n > 1 then -- one look finds most of them
  for _, p in ipairs(redis.call('XPENDING', stream, group, ARGV[3], ARGV[#ARGV], 2 * n, me)) do
    own[p[1]] = true
  end
end
for i = 3, #ARGV do
  local id = ARGV[i]
  if own[id] or mine(id) then
    acked[#acked + 1] = id
  else
    lost[#lost + 1] = id
  end
end
for i = 1, #acked, 1000 do -- a call has a limited number of arguments
  redis.call('XACK', stream, group, unpack(acked, i, math.min(i + 999, #acked)))
end
return lost
