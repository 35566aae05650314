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
end
if to == UNKNOWN then
	redis.call('HSET', KEYS[1], 'lease', number(now))
elseif to == DONE then
	redis.call('SET', KEYS[2], outcome)
	expire(KEYS[2], after(keepOutcome))
	redis.call('HSET', KEYS[1], 'content_type', contentType, 'flags', flags, 'sum', sum, 'keep_outcome', after(keepOutcome))
end
local ended = to == ABSENT or to == DONE
if ended then
	redis.call('ZREM', KEYS[3], digest)
	redis.call('HSET', KEYS[1], 'keep_key', after(keepKey))
end
-- Redis does not undo what a script wrote before it failed, for example without
-- permission to SET. The status is therefore written after what it promises.
redis.call('HSET', KEYS[1], 'status', number(to), 'reason', reason, 'updated', number(now))
if ended then
	expire(KEYS[1], after(keepKey))
end
return 1
