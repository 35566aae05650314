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
redis.call('HSET', KEYS[1], 'status', number(to), 'reason', reason, 'updated', number(now))
if to == UNKNOWN then
	redis.call('HSET', KEYS[1], 'lease', number(now))
elseif to == ABSENT then
	redis.call('ZREM', KEYS[3], digest)
	redis.call('HSET', KEYS[1], 'keep_key', after(keepKey))
	expire(KEYS[1], after(keepKey))
elseif to == DONE then
	redis.call('HSET', KEYS[1], 'content_type', contentType, 'flags', flags, 'sum', sum, 'keep_outcome', after(keepOutcome),
		'keep_key', after(keepKey))
	redis.call('SET', KEYS[2], outcome)
	redis.call('ZREM', KEYS[3], digest)
	expire(KEYS[2], after(keepOutcome))
	expire(KEYS[1], after(keepKey))
end
return 1
