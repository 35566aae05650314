local owner, attempt, reason, keepKey = unpack(ARGV)
onPrimary()
local is = status()
if not heldBy(owner, attempt) or is ~= ABSENT and is ~= DONE and is ~= EXPIRED then
	return 0
end
if is ~= ABSENT then
	redis.call('HSET', KEYS[1], 'owner', owner) -- which changes nothing: it fails before the outcome is lost
	redis.call('DEL', KEYS[2]) -- first, because a duplicate is answered from the outcome alone
	redis.call('HDEL', KEYS[1], 'format', 'check')
	redis.call('HSET', KEYS[1], 'status', number(ABSENT), 'reason', reason, 'updated', number(now), 'keep_key', after(keepKey))
	expire(KEYS[1], after(keepKey))
end
return 1
