-- withFields returns what is stored of an outcome.
local function withFields(fields, body)
	local sized = {}
	for i, text in ipairs(fields) do
		sized[2 * i - 1], sized[2 * i] = #text, text
	end
	local head = struct.pack('>' .. string.rep('I4c0', #fields), unpack(sized))
	head = head .. struct.pack('>I4c0', 40, redis.sha1hex(head))
	return struct.pack('>I4', #head) .. head .. body
end

local owner, attempt, to, reason, keepOutcome, keepKey, digest, contentType, flags, sum, outcome = unpack(ARGV)
onPrimary()
to = tonumber(to)
local is = status()
if not heldBy(owner, attempt) then
	return 0
end
if is == ABSENT then
	return to == ABSENT and 1 or 0
end
if is == DONE or is == EXPIRED then -- an outcome that has expired cannot be compared
	local same = is == EXPIRED or row.content_type == contentType and row.flags == flags and row.sum == sum and body() == outcome
	return to == DONE and same and 1 or 0
end
if is == PARKED and to == UNKNOWN then -- a person decides already
	return 0
end
if row.firm == '1' then -- Redis may drop it, which is for claims of transactions only
	redis.call('PERSIST', KEYS[1])
	redis.call('HSET', KEYS[1], 'firm', '0')
	row.firm = '0'
end
local fields = {}
local function set(name, value)
	fields[#fields + 1], fields[#fields + 2] = name, value
	row[name] = value
end
set('status', number(to))
set('reason', reason)
set('updated', number(now))
local ended = to == ABSENT or to == DONE
if ended then
	redis.call('ZREM', KEYS[3], digest)
	set('keep_key', after(keepKey))
end
local value, gone
if to == UNKNOWN then
	set('lease', number(now))
elseif to == DONE then
	local kept, known = after(keepOutcome), after(keepKey)
	set('content_type', contentType)
	set('flags', flags)
	set('sum', sum)
	set('keep_outcome', kept)
	value = withFields({ attempt, owner, row.fingerprint or '', row.cause or '', contentType, flags, sum, reason, row.created,
		number(now), row.scope, row.operation, row.id, kept, known }, outcome)
	gone = math.min(tonumber(kept), tonumber(known))
	set('format', number(FORMAT))
	set('check', checkOf(row))
end
-- Redis does not undo what a script wrote before it failed, for example without
-- permission to SET. The status is therefore written after what it promises.
orNoOutcome(KEYS[2], function()
	if value then
		redis.call('SET', KEYS[2], value)
		expire(KEYS[2], gone)
	end
	redis.call('HSET', KEYS[1], unpack(fields))
end)
if ended then
	expire(KEYS[1], after(keepKey))
end
return 1
