-- Reads the consumers, or one of them, or writes one if it is as it was read.
-- KEYS[1] has a field for each name.
redis.call('PERSIST', KEYS[1]) -- changes nothing, and is refused by a replica
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
local name, was, is = unpack(ARGV)
if not name then
	return { now, redis.call('HGETALL', KEYS[1]) }
end
local stored = redis.call('HGET', KEYS[1], name) or ''
if not is then
	return { now, stored }
end
if stored ~= was then
	return { now, '' }
end
redis.call('HSET', KEYS[1], name, is)
return { now, is }
