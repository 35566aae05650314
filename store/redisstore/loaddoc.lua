-- Returns a document: the hash KEYS[1]. KEYS[2] is the index. Only a primary
-- answers, as in record.lua.
redis.call('PERSIST', KEYS[2])
local clock = redis.call('TIME')
local fields = redis.call('HMGET', KEYS[1], 'version', 'text', 'parked')
if CONFIRMED and fields[1] then
	redis.call('HSET', KEYS[1], 'version', fields[1])
end
local damaged = not (fields[1] and fields[2]) and redis.call('EXISTS', KEYS[1]) == 1
return { string.format('%.0f', clock[1] * 1000000 + clock[2]), fields[1] or '', fields[2] or '', fields[3] or '', damaged and '1' or '' }
