// Package kafkabroker carries messages over Apache Kafka, and what speaks its protocol, by franz-go.
//
// # Promise
//
// What [New] makes keeps every rule of package broker. Publish says nil once all in-sync replicas have a message. A
// consumer group commits an offset only when everything below it was settled, in whatever order that happened, and no
// session commits a partition that it has let go.
//
//   - Order: the record key is the OrderingKey, so messages of a key are in one partition, and arrive in its order.
//   - Redelivered is exact after a clean stop. Kafka has no such flag, so each commit notes in its metadata how far
//     messages may have been handed out, and none is handed out beyond what is noted. After a crash the messages below
//     the note are redelivered ones, whether they had been handed out or not. Where the note is missing, for example
//     because the group's offsets were reset, those are all that the partition held when it was assigned.
//   - A group that has no offsets begins with the oldest message, never behind the newest.
//   - A message that was lost before it was read (retention passed by) is an error of Receive, and stays one until a
//     person moves the offsets of the group: nothing is skipped in silence.
//   - A topic that is made anew has another [broker.Position.Log], and is read from its beginning.
//   - When a partition moves to another session, the old one takes no more of it, and waits for what is out, for half
//     the rebalance timeout of the client at most. It commits, and lets go. What is settled later is an error.
//
// # Limits
//
// A returned message is kept in memory and holds back the commit of its partition. So when a session breaks, what came
// behind it is delivered again, and it may come earlier than after its delay. While [Options.LargestHeld] are kept,
// nothing new is received. Commits are sent every [Options.CommitEvery], and when a session or a partition is let go:
// Ack does not wait for them. Attempts are counted in a session only.
//
// The end of a Publish context ends the waiting, but the record may still be sent, for [Options.GiveUpAfter] or until
// the answer to a request comes. Its timestamp in the log is when it was sent, and the header "once-time" has when it
// was produced: an old message that is published late must not fall to the retention at once. A message over
// max.message.bytes of the topic, or [kgo.ProducerBatchMaxBytes], is an error. An empty Body is an empty value, never
// a tombstone.
//
// # Foreign messages
//
// The ID is in the header "once-id", or else "ce_id" as CloudEvents have it, or else empty. Header names are made lower
// case, and of a name that comes twice the last counts. The OrderingKey is the record key, whatever its bytes.
//
// # Compatibility
//
// That of package broker. It needs Kafka 2.1, and knows a topic that was made anew from Kafka 3.1 on; Redpanda and
// others are as good as their own groups are. Kafka's transactions are not used: they are exactly-once within Kafka,
// while an effect in a database is made exactly-once by that database, which package inbox does. Messages of somebody
// else's transaction come when it is committed.
package kafkabroker
