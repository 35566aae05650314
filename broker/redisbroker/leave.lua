-- Returns up to a number of entries of this session. When it has none left, it
-- removes the session from the group. Returns how many entries it has returned.
-- ARGV: group, session, the consumer that has what was returned, how many
local own = redis.call('XPENDING', stream, group, '-', '+', ARGV[4], me)
for _, p in ipairs(own) do
  redis.call('XCLAIM', stream, group, ARGV[3], 0, p[1], 'JUSTID')
end
if #own < tonumber(ARGV[4]) then
  redis.call('XGROUP', 'DELCONSUMER', stream, group, me)
  if redis.call('GET', KEYS[2]) == me then
    redis.call('DEL', KEYS[2])
  end
end
return #own
