-- Gives entries of this session to the consumer that has what was returned, and
-- returns those that are not its own.
-- ARGV: group, session, that consumer, entries
local lost = {}
for i = 4, #ARGV do
  if mine(ARGV[i]) then
    redis.call('XCLAIM', stream, group, ARGV[3], 0, ARGV[i], 'JUSTID')
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
