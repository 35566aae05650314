-- PERSIST changes nothing, and makes a replica refuse the script.
redis.call('PERSIST', KEYS[3])
return answer()
