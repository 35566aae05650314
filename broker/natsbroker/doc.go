// Package natsbroker carries messages over streams of NATS JetStream.
//
// # Promise
//
// Publish returns nil once a stream has confirmed a message. The ID of the
// message is its Nats-Msg-Id. A message leaves a consumer only after Ack or
// Reject. Both wait for the reply of the server, unless
// [Options.UnconfirmedAcks] is set. While a session is open, it extends the
// AckWait of its deliveries, so a handler may take longer. If the process dies,
// its deliveries are delivered again after AckWait, as are those whose settlement
// fails; after Close they come at once. A session whose stream or consumer is
// recreated ends with an error.
//
// # Limits
//
//   - By default, JetStream confirms messages before it has synced them to disk.
//     A server that loses power loses up to two minutes of confirmed messages,
//     and so does a cluster if most of its servers lose power. Set
//     "sync_interval: always" in the jetstream block of the servers, and use
//     three replicas.
//   - A stream deletes messages by its limits, whether or not a consumer has seen
//     them. With MaxMsgs or MaxBytes, use DiscardNew, which makes Publish fail.
//     [broker.Horizon] returns MaxAge.
//   - Order: first deliveries come in the order of the stream. A redelivered
//     message comes later than those that were in flight with it, and sessions
//     work concurrently. Across processes, the messages of a key stay in order
//     with MaxAckPending 1, or with a consumer for each part of the subjects and
//     one process for each consumer.
//   - A returned message counts against the MaxAckPending of the consumer while
//     it waits. At that limit, the server delivers nothing more.
//   - A server that is killed may forget the newest deliveries and acks of its
//     consumers, even confirmed ones and with "sync_interval: always", and start
//     to count from 1 again. So Redelivered is true for all messages that were
//     stored when the session was opened, or when it last had to doubt the
//     server, after a lost connection, a change of the leader or a silence.
//   - Deliveries of a consumer have no [broker.Position]. JetStream redelivers
//     messages after later ones, so a consumer that kept only a position would
//     skip them. Remember keys instead.
//   - A consumer cannot be read again, so its sessions are no [broker.Seeker].
//     Create a new consumer with a starting point.
//   - A message over the max_payload of the server, by default 1 MiB of headers
//     and body, is [broker.ErrInvalid]. Topics are subjects without wildcards
//     that do not begin with a dollar sign.
//   - A message whose subject is answered by a service and not by a stream is
//     never confirmed. If several streams take a subject, the server chooses.
//   - The publisher cannot see the duplicate window of a stream. Set
//     [Options.DuplicateWindow] if it is not two minutes.
//
// The headers Nats-Msg-Id, Once-Ordering-Key and Once-Time have the ID, the ordering
// key and the time of a message. Other header names become lower case on delivery. A
// message without Nats-Msg-Id is delivered with an empty ID.
//
// # Compatibility
//
// As package once. The package needs servers from 2.11 on. Earlier ones may
// confirm a message as a duplicate of one that they then fail to store, and
// before 2.10.4 they do not support TERM with a reason. Tested on 2.15.
package natsbroker
