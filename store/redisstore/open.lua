onPrimary()
if not row.attempt then -- somebody has deleted the record
	redis.call('ZREM', KEYS[3], ARGV[1])
end
return answer()
