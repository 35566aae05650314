local owner, attempt, lease = unpack(ARGV)
onPrimary()
if status() ~= RUNNING or not heldBy(owner, attempt) then
	return 0
end
redis.call('HSET', KEYS[1], 'lease', after(lease), 'updated', number(now))
return 1
