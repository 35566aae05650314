-- Deletes documents, or gives them other names and texts, and tells of each
-- whether it did. KEYS[1] is the index and KEYS[2] the bell. Each document has two
-- keys: its own, and that of its new name.
redis.call('PERSIST', KEYS[1]) -- as in record.lua
local rev, made, rings = ARGV[1], {}, false
for i = 1, (#KEYS - 2) / 2 do
	local from, to = KEYS[2 * i + 1], KEYS[2 * i + 2]
	local name, over, toName, text = unpack(ARGV, 4 * i - 2, 4 * i + 1)
	local version = redis.pcall('HGET', from, 'version')
	if (not version or type(version) == 'table') and redis.call('EXISTS', from) == 1 then -- it is damaged
		version = ''
	end
	made[i] = 0
	if version and (over == '' or over == version) and (toName == '' or toName == name or redis.call('EXISTS', to) == 0) then
		made[i] = 1
		if toName == '' then
			redis.call('DEL', from)
			redis.call('ZREM', KEYS[1], name)
		else
			-- In this order, what fails in between is there twice, and not lost.
			if isMessage(toName) then
				redis.call('ZADD', KEYS[1], 0, toName)
			end
			if version == '' and toName == name then
				redis.call('DEL', from)
			end
			redis.call('HSET', to, 'text', text, 'version', rev, 'expires', '')
			if toName ~= name then
				redis.call('DEL', from)
				redis.call('ZREM', KEYS[1], name)
			end
			rings = rings or isMessage(toName)
		end
	end
end
if rings then
	ring(KEYS[2])
end
return made
