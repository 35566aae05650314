-- Renews entries of this session, and returns those that it has lost.
-- ARGV: group, session, entries
local lost = {}
for i = 3, #ARGV do
  if mine(ARGV[i]) then
    redis.call('XCLAIM', stream, group, me, 0, ARGV[i], 'IDLE', 0, 'JUSTID')
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
