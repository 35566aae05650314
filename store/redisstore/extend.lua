local owner, attempt, lease = unpack(ARGV)
onPrimary()
if status() ~= RUNNING or not heldBy(owner, attempt) then
	return 0
end
if row.firm == '1' then
	local keepKey = number(tonumber(row.keep_key) - tonumber(row.lease) + tonumber(after(lease)))
	redis.call('HSET', KEYS[1], 'keep_key', keepKey)
	expire(KEYS[1], keepKey)
end
redis.call('HSET', KEYS[1], 'lease', after(lease), 'updated', number(now))
return 1
