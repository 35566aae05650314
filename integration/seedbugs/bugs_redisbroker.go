package seedbugs

var redisComesAgain = Test{"./integration/brokers", "^TestRedisConformance$/^close$/^comes-again$"}

var redisBrokerBugs = []Bug{
	{
		Name: "redis-acks-entries-of-others", Why: "a stalled session settles what another one handles",
		File: "broker/redisbroker/own.lua",
		Old:  `return p ~= nil and p[2] == me`,
		New:  `return p ~= nil`,
		Test: Test{"./integration/brokers", "^TestRedisStalledSessionSettlesNothing$"},
	},
	{
		Name: "redis-renews-nothing", Why: "a message whose handler is slow goes to another session as well",
		File: "broker/redisbroker/renew.lua",
		Old:  `'IDLE', 0, 'JUSTID')`,
		New:  `'IDLE', 3600000, 'JUSTID')`,
		Test: Test{"./integration/brokers", "^TestRedisSlowHandlerKeepsItsMessage$"},
	},
	{
		Name: "redis-claims-nothing", Why: "messages of a process that has died never come again",
		File: "broker/redisbroker/abandoned.lua",
		Old:  `if p[2] ~= me then`,
		New:  `if p[2] == me then`,
		Test: Test{"./integration/brokers", "^TestRedisClaimsWhatADeadSessionLeft$"},
	},
	{
		Name: "redis-leaves-with-its-entries", Why: "messages of a session that is closed are lost",
		File: "broker/redisbroker/leave.lua",
		Old:  `redis.call('XCLAIM', stream, group, ARGV[3], 0, p[1], 'JUSTID')`,
		New:  `local _ = p`,
		Test: redisComesAgain,
	},
	{
		Name: "redis-trims-what-is-pending", Why: "messages are deleted before they are handled",
		File: "broker/redisbroker/trim.lua",
		Old:  `if summary[1] > 0 and before(summary[2], floor) then`,
		New:  `if false then`,
		Test: Test{"./integration/brokers", "^TestRedisTrimsWhatAllGroupsHaveAcknowledged$"},
	},
	{
		Name: "redis-trims-what-was-not-delivered", Why: "a group that is behind misses messages",
		File: "broker/redisbroker/trim.lua",
		Old:  `if before(is['last-delivered-id'], floor) then`,
		New:  `if false then`,
		Test: Test{"./integration/brokers", "^TestRedisTrimsWhatAllGroupsHaveAcknowledged$"},
	},
	{
		Name: "redis-trims-without-a-group", Why: "a group that is declared later misses messages",
		File: "broker/redisbroker/trim.lua",
		Old:  `  return {'missing', name}`,
		New:  `  break`,
		Test: Test{"./integration/brokers", "^TestRedisTrimsWhatAllGroupsHaveAcknowledged$"},
	},
	{
		Name: "redis-hides-deleted-entries", Why: "messages that were deleted are lost without an error",
		File: "broker/redisbroker/session.go",
		Old:  `if len(c.deleted) > 0 {`,
		New:  `if false {`,
		Test: Test{"./integration/brokers", "^TestRedisReportsPendingEntriesThatWereDeleted$"},
	},
	{
		Name: "redis-trusts-a-server-that-failed", Why: "a message that came before comes as if it were new",
		File: "broker/redisbroker/session.go",
		Old:  `a.redelivered = !a.id.after(s.doubt)`,
		New:  `a.redelivered = false`,
		Test: Test{"./integration/redisstore", "^TestBrokerFailover$"},
	},
	{
		Name: "redis-confirms-without-replicas", Why: "a failover loses messages that Replicas should have kept",
		File: "broker/redisbroker/publisher.go",
		Old:  `case confirmed.Val() < int64(o.Replicas):`,
		New:  `case confirmed.Val() < 0:`,
		Test: Test{"./integration/redisstore", "^TestBrokerFailover$"},
	},
	{
		Name: "redis-reads-on-after-a-reset", Why: "messages that were handled come as if they were new",
		File: "broker/redisbroker/session.go",
		Old:  `if !a.id.after(s.highest) {`,
		New:  `if false {`,
		Test: Test{"./integration/brokers", "^TestRedisSessionEndsLoudly$"},
	},
	{
		Name: "redis-has-two-active-sessions", Why: "messages of an ordering key are handled out of order",
		File: "broker/redisbroker/activate.lua",
		Old:  `if active and active ~= me then`,
		New:  `if false then`,
		Test: Test{"./integration/brokers", "^TestRedisSingleActiveKeepsOrder$"},
	},
	{
		Name: "redis-reads-before-what-was-left", Why: "a session that takes over handles later messages first",
		File: "broker/redisbroker/session.go",
		Old:  `s.state = takingOver`,
		New:  `s.state = reading`,
		Test: Test{"./integration/brokers", "^TestRedisSingleActiveSkipsNothingThatWasLeft$"},
	},
}
