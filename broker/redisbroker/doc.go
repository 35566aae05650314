// Package redisbroker carries messages over Redis Streams, with consumer groups,
// through go-redis: one server, one with replicas and Sentinel, or a cluster.
//
//	streams := redisbroker.New(client, nil)
//	err := streams.DeclareGroup(ctx, "orders", "billing")
//	to := streams.Publisher()                  // the Topic of a message is its stream
//	from := streams.Group("orders", "billing") // each group gets all messages
//
// # Promise
//
//   - Publish returns nil once Redis has answered XADD and, with
//     [Options.Replicas], once that many replicas have received the message.
//   - An entry stays pending in its group until Ack or Reject. While a session is
//     open, it renews its entries, so a handler may take longer than
//     [Options.ClaimAfter]. If the process dies, other sessions claim its entries
//     after ClaimAfter. After Return and Close they come within a second.
//   - A session settles only entries that it still owns. Once another session has
//     claimed an entry, settling it is an error.
//   - [Broker.Trim] deletes only what every group has acknowledged.
//   - If the stream or the group is deleted, sessions end with an error, and Open
//     fails until the group is declared again. A pending entry that was deleted
//     before it was handled ends the session with an error that names it.
//
// # Limits
//
//   - Redis confirms a message before it is on another machine. A failover loses
//     the confirmed messages that the new primary had not received, unless
//     Replicas makes Publish wait for them. It also loses acks and deliveries,
//     whose messages then come again. With "appendfsync everysec", the default of
//     the append-only file, a crash of the machine loses the last second or two,
//     and with "appendonly no" everything since the last snapshot. A lost message
//     is gone without an error.
//   - The maxmemory-policy must not be one that begins with "allkeys", which
//     would evict a stream. Open and Publish check that.
//   - Redelivered is true for all messages that were stored when the session was
//     opened, because a server that failed may have forgotten their deliveries.
//     A session ends with its connection. After XGROUP SETID, or after a group is
//     recreated while sessions are open, it may be false for a message that came
//     before.
//   - Redis cannot delay a message, so Return ignores the delay, and sessions are
//     no [broker.Delayer]. It drops no duplicates: a message that is published
//     again is another entry with the same ID.
//   - Order: first deliveries come in the order of the stream. A returned or
//     claimed message comes later than those after it. The sessions of a group
//     share its messages, whatever their OrderingKey. With
//     [Options.SingleActive], one session at a time gets messages, and the next
//     one begins with what the last left, in order. A stream has no partitions:
//     to share ordered work, spread the keys over several streams.
//   - Deliveries have no [broker.Position].
//   - Rejected messages are appended to [Options.DeadLetter] and then
//     acknowledged. A crash between the two leaves both copies. Without it they
//     are gone.
//   - Idle times are those of the server. If its clock jumps forward, also in a
//     failover, entries are claimed early.
//   - A stream whose name has a "}" and no hash tag is [broker.ErrInvalid].
//
// # Entries
//
// An entry has the fields id, key (the ordering key), time (RFC 3339), body, and
// "h." before the name of each header. Only id is mandatory. Other fields
// become headers, their names in lower case, so that entries of other programs
// can be read. Without an id, the ID of the message is empty.
//
// # Rights
//
// A consumer needs CLIENT ID, CLIENT UNBLOCK, EVAL, EVALSHA, GET, INFO, PEXPIRE,
// PING, SET, DEL, XACK, XADD, XCLAIM, XGROUP, XINFO, XPENDING, XRANGE, XREAD and
// XREADGROUP, on the stream, on [Options.DeadLetter] and on keys that begin with
// "once:". A publisher needs INFO, XADD and, with Replicas, WAIT.
//
// # Compatibility
//
// As package once. The package needs Redis 6.2 or newer. Tested on 7.0.
package redisbroker
