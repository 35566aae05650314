// Package natsbroker is an adapter of package broker for the streams of NATS JetStream.
//
// # Promise
//
// Publish says nil for what a stream has confirmed, with the message's ID as its Nats-Msg-Id. A message is gone from a
// consumer only after Ack or Reject; both wait for the server's answer, unless [Options.UnconfirmedAcks] is set. While
// a session lives, the server is told that its deliveries are being worked on, so that a handler may take longer than
// the consumer's AckWait; when the process dies, they come again after AckWait, and at once after Close.
// A session whose stream or consumer was made anew under it ends with an error.
//
// # Limits
//
//   - By default, JetStream confirms what it has not synced to its disk yet: a server that loses power loses up to two
//     minutes of confirmed messages, and a cluster does when that happens to most of it. Set "sync_interval: always" in
//     the servers' jetstream block, and have three replicas.
//   - A stream forgets by its own limits, whether a consumer has seen a message or not: with MaxMsgs or MaxBytes take
//     DiscardNew, which makes Publish fail; MaxAge is what [broker.Horizon] answers with.
//   - Order: first deliveries come in the order of the stream, but what comes again comes later than what was out
//     beside it, and several sessions run side by side. Across processes, the messages of a key stay in order with
//     MaxAckPending 1, or with a consumer for each part of the subjects and one process for each consumer.
//   - A returned message counts against the consumer's MaxAckPending while it waits, so that number bounds how many may
//     wait; past it, the server delivers nothing.
//   - A server that is killed may forget the newest deliveries and acks of its consumers, also those that it confirmed,
//     even with "sync_interval: always", and counts from 1 again. So Redelivered is true for all
//     that was stored when a session was opened, or last had reason to doubt the server: a lost connection, a change of
//     leaders, a silence.
//   - Deliveries of a consumer have no [broker.Position]. JetStream delivers again what a session had out behind what
//     is later in the stream, so a consumer that kept only a position would take it for handled. Remember keys instead.
//   - A consumer cannot be read again: sessions are no [broker.Seeker]. Make a new consumer with a starting point.
//   - Messages are limited by the server's max_payload, 1 MiB of headers and body by default; what is larger is
//     [broker.ErrInvalid]. Topics are subjects without wildcards, and not those that begin with a dollar sign.
//   - A message whose subject is answered by a service and not by a stream is never confirmed. Where several streams
//     could be meant, it is the server that tells them apart.
//   - The duplicate window belongs to the stream, and the publisher cannot see it: say in [Options.DuplicateWindow] if
//     it is not two minutes.
//
// The headers Nats-Msg-Id, Once-Key and Once-Time carry a message's ID, ordering key and time. Header names of others
// are made lower case on delivery. A message without Nats-Msg-Id is delivered with an empty ID.
//
// # Compatibility
//
// That of package once. Servers from 2.11 on: earlier ones may confirm a message as a duplicate of one that they then
// fail to store, and do not know TERM with a reason (before 2.10.4). Tested on 2.15.
package natsbroker
