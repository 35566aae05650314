local owner, attempt, reason, keepKey = unpack(ARGV)
onPrimary()
local is = status()
if not heldBy(owner, attempt) or is ~= ABSENT and is ~= DONE and is ~= EXPIRED then
	return 0
end
if is ~= ABSENT then
	redis.call('HSET', KEYS[1], 'status', number(ABSENT), 'reason', reason, 'updated', number(now), 'keep_key', after(keepKey))
	redis.call('DEL', KEYS[2])
	expire(KEYS[1], after(keepKey))
end
return 1
