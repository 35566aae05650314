-- Makes this session the active one, or keeps it active, and returns 1. Returns
-- 0 if another one is.
-- ARGV: group, session, how long
local active = redis.call('GET', KEYS[2])
if active and active ~= me then
  return 0
end
redis.call('SET', KEYS[2], me, 'PX', ARGV[3])
return 1
