local owner, attempt, lease, digest, fingerprint, cause, scope, operation, id = unpack(ARGV)
local is = status()
local takeover = is == UNKNOWN and row.attempt == attempt and row.owner ~= owner
local late = is == ABSENT and row.owner == owner and row.firm ~= '1'
if (is == ABSENT or takeover) and not late then
	row = { status = number(RUNNING), attempt = number(tonumber(row.attempt or 0) + 1), owner = owner, lease = after(lease),
		fingerprint = fingerprint, cause = cause, scope = scope, operation = operation, id = id,
		created = row.created or number(now), updated = number(now) }
	local fields = {}
	for name, value in pairs(row) do
		fields[#fields + 1], fields[#fields + 2] = name, value
	end
	redis.call('ZADD', KEYS[3], 0, digest) -- first: after DEL, it would not fail where memory is full
	redis.call('DEL', KEYS[1], KEYS[2])
	redis.call('HSET', KEYS[1], unpack(fields))
else
	onPrimary()
end
return answer()
