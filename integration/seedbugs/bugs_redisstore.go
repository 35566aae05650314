package seedbugs

var redisConformance = Test{"./store/redisstore", "^TestConformance$"}

var redisBugs = []Bug{
	{
		Name: "redis-fence-without-owner", Why: "a late call ends the attempt of another process",
		File: "store/redisstore/record.lua",
		Old:  `return row.owner == owner and row.attempt == attempt`,
		New:  `return row.attempt == attempt`,
		Test: redisConformance,
	},
	{
		Name: "redis-takeover-of-any-attempt", Why: "work whose outcome is unknown runs again unasked",
		File: "store/redisstore/claim.lua",
		Old:  `is == UNKNOWN and row.attempt == attempt and`,
		New:  `is == UNKNOWN and`,
		Test: redisConformance,
	},
	{
		Name: "redis-late-claim", Why: "a claim whose reply was lost takes the key after its release",
		File: "store/redisstore/claim.lua",
		Old:  ` and not late then`,
		New:  ` then`,
		Test: redisConformance,
	},
	{
		Name: "redis-lease-for-ever", Why: "the key of a process that died stays running",
		File: "store/redisstore/record.lua",
		Old:  `tonumber(row.lease) <= now`,
		New:  `tonumber(row.lease) <= 0`,
		Test: Test{"./store/redisstore", "^TestConformance$/^lease$"},
	},
	{
		Name: "redis-claim-keeps-the-expiry", Why: "a key that was released expires while its next attempt runs",
		File: "store/redisstore/claim.lua",
		Old:  `redis.call('DEL', KEYS[1], KEYS[2])`,
		New:  `redis.call('DEL', KEYS[2])`,
		Test: Test{"./store/redisstore", "^TestOpenKeysNeverExpire$"},
	},
	{
		Name: "redis-extend-after-the-lease", Why: "a holder goes on after another may have taken over",
		File: "store/redisstore/extend.lua",
		Old:  `status() ~= RUNNING or not`,
		New:  `status() == DONE or not`,
		Test: redisConformance,
	},
	{
		Name: "redis-settles-twice", Why: "a second, different outcome is reported as recorded",
		File: "store/redisstore/settle.lua",
		Old:  ` and body() == outcome`,
		New:  ``,
		Test: redisConformance,
	},
	{
		Name: "redis-unparks", Why: "a late call takes a decision away from a person",
		File: "store/redisstore/settle.lua",
		Old:  `if is == PARKED and to == UNKNOWN then`,
		New:  `if is == PARKED and to == RUNNING then`,
		Test: redisConformance,
	},
	{
		Name: "redis-reopens-running-work", Why: "work runs while it is running already",
		File: "store/redisstore/reopen.lua",
		Old:  ` or is ~= ABSENT and is ~= DONE and is ~= EXPIRED`,
		New:  ``,
		Test: redisConformance,
	},
	{
		Name: "redis-evicts", Why: "a server that is short of memory forgets keys",
		File: "store/redisstore/redisstore.go",
		Old:  `if value != "noeviction" {`,
		New:  `if value == "" {`,
		Test: Test{"./store/redisstore", "^TestOnlyNoevictionIsAccepted$"},
	},
	{
		Name: "redis-asks-a-replica", Why: "a late replica ends the lease of a call, or answers for work that a person has run again",
		File: "store/redisstore/record.lua",
		Old:  `redis.call('PERSIST', KEYS[3])`,
		New:  ``,
		Test: Test{"./integration/redisstore", "^TestAReplicaIsNotAsked$"},
	},
	{
		Name: "redis-claims-without-memory", Why: "a server grows over its maxmemory until the machine stops it",
		File: "store/redisstore/claim.lua",
		Old:  `redis.call('ZADD', KEYS[3], 0, digest)`,
		New:  `onPrimary() redis.call('ZADD', KEYS[3], 0, digest)`,
		Test: Test{"./integration/redisstore", "^TestAFullServerRefusesClaimsAndRecordsWork$"},
	},
	{
		Name: "redis-list-stops-early", Why: "stuck keys are not found",
		File: "store/redisstore/list.go",
		Old:  `for len(filled) > 0 && len(ids) < limit {`,
		New:  `if len(filled) > 0 && len(ids) < limit {`,
		Test: redisConformance,
	},
}
