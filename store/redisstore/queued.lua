-- Returns documents whose names are in a range of the index, KEYS[1], up to limit
-- or a little more than some bytes: the last name it has looked at, or nothing if
-- there are no more, and then the name, version and text of each. The documents
-- are in the slot of the index.
local from, to, limit, documents, most = unpack(ARGV)
redis.call('PERSIST', KEYS[1]) -- as in record.lua
local names = redis.call('ZRANGEBYLEX', KEYS[1], from, to, 'LIMIT', 0, limit)
local answer, bytes, last = { '' }, 0, nil
for i, name in ipairs(names) do
	local fields = redis.pcall('HMGET', documents .. name, 'version', 'text')
	if fields.err or not (fields[1] and fields[2]) and redis.call('EXISTS', documents .. name) == 1 then -- it is damaged
		local n = #answer
		answer[n + 1], answer[n + 2], answer[n + 3] = name, '', fields.err or 'it lacks its version or its text'
	elseif fields[1] then
		local n = #answer
		answer[n + 1], answer[n + 2], answer[n + 3] = name, fields[1], fields[2]
		bytes, last = bytes + #fields[2], { documents .. name, fields[1] }
	else -- somebody has deleted it
		redis.call('ZREM', KEYS[1], name)
	end
	if i == tonumber(limit) or i < #names and bytes > tonumber(most) then
		answer[1] = name
		break
	end
end
if CONFIRMED and last then -- replicas that have this write have all before it
	redis.call('HSET', last[1], 'version', last[2])
end
return answer
