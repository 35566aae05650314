// Package kafkabroker carries messages over Apache Kafka and compatible systems,
// with franz-go.
//
// # Promise
//
// A [Broker] keeps every rule of package broker. Publish returns nil once all
// in-sync replicas have a message. A consumer group commits an offset only when
// everything below it is settled, in whatever order that happens. No session
// commits a partition that it has lost.
//
//   - Order: the record key is the OrderingKey, so messages of a key are in one
//     partition, and arrive in its order.
//   - Redelivered is exact after a clean stop. Kafka has no such flag, so the
//     metadata of each commit contains an offset that deliveries have not
//     reached, and no message from that offset on is delivered. After a crash,
//     all messages below it are redelivered, even if they had never been
//     delivered. If the metadata is missing, for example because the offsets of
//     the group were reset, all messages that the partition held when it was
//     assigned are redelivered.
//   - A group without offsets starts with the oldest message.
//   - If retention has deleted messages before they were read, Receive fails
//     until a person moves the offsets of the group. No message is skipped
//     silently.
//   - What a session has read past is settled: control records of transactions, and
//     messages that were aborted. The metadata of a commit has how many offsets
//     before it have no message, so a position before them can be continued after
//     they are deleted.
//   - A topic that is recreated has another [broker.Position.Log] and is read
//     from its start.
//   - When a partition moves to another session, the old one delivers no more of
//     it. It waits for the deliveries in flight, for up to half the rebalance
//     timeout of the client, and commits. Settling them later is an error.
//
// # Limits
//
// A returned message is kept in memory and holds back the commit of its
// partition. So when a session breaks, the messages after it are delivered
// again, and it may come earlier than its delay. While [Options.LargestHeld]
// messages are kept, no new ones are received. Ack does not wait for a commit.
// Commits are sent every [Options.CommitEvery], and when a session or a
// partition ends. Attempts are counted per session only.
//
// The end of a Publish context ends the wait, but the record may still be sent,
// for [Options.GiveUpAfter] or until a request is answered. The timestamp of a
// record is the time of sending, and the header "once-time" has the time of the
// message, so that retention does not delete an old message that is published
// late. A message over max.message.bytes of the topic, or over
// [kgo.ProducerBatchMaxBytes], is an error. An empty Body is an empty value,
// never a tombstone.
//
// # Foreign messages
//
// The ID is the header "once-id", or else "ce_id" of CloudEvents, or else empty.
// Header names become lower case, and of a repeated name the last counts. The
// OrderingKey is the record key, whatever its bytes.
//
// # Compatibility
//
// As package broker. The package needs Kafka 2.1. It detects a recreated topic
// from Kafka 3.1 on. Redpanda and other systems work as far as their groups are
// compatible. Kafka's transactions are not used. They are exactly-once within
// Kafka only, and package inbox makes effects in a database exactly-once through
// that database. Messages of other publishers' transactions arrive when those
// commit.
package kafkabroker
