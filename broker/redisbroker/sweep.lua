-- Removes sessions that have ended from the group. A consumer that is removed
-- takes its pending entries with it, so only those without any are.
-- ARGV: group, session, the consumer that has what was returned, minimum idle
-- time, the prefix of names of sessions
for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local is = {}
  for i = 1, #c, 2 do
    is[c[i]] = c[i + 1]
  end
  if is.name ~= me and is.name ~= ARGV[3] and string.sub(is.name, 1, #ARGV[5]) == ARGV[5] and is.idle > tonumber(ARGV[4]) and
      #redis.call('XPENDING', stream, group, '-', '+', 1, is.name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, is.name)
  end
end
return 1
