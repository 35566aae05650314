-- Acknowledges entries of this session, and returns those that are not its own.
-- ARGV: group, session, entries
local lost = {}
for i = 3, #ARGV do
  if mine(ARGV[i]) then
    redis.call('XACK', stream, group, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
