package store

import "strings"

// queueSuffix makes the Consumer of the rows of a queue. No consumer can have it:
// the name of a consumer or of its rebuild has no two @ in a row.
const queueSuffix = "@@queue"

// QueueOf returns the Consumer of those rows of a [Shelf] that are the queue of a
// consumer, whose messages come through the store: see package storebroker. keys
// is the name in the consumer's keys. A row has the ID of its message in Key. Its
// Message.ID tells it from other messages with this ID.
//
// A row is Waiting until it is handled, and its Due is in the future while a
// process has it. It is Parked if it was rejected. Rows of the queue are apart from
// the messages that the consumer itself has on the shelf.
func QueueOf(keys string) string { return keys + queueSuffix }

// QueueOwner is the reverse of [QueueOf]. ok is false if rows of this Consumer are
// no queue.
func QueueOwner(consumer string) (keys string, ok bool) {
	return strings.CutSuffix(consumer, queueSuffix)
}

// Queued returns a row of a queue with the ID that its message has for its
// consumer, and the name in the consumer's keys. Other messages on the shelf are
// returned as they are.
func Queued(m Shelved) (row Shelved, ok bool) {
	if keys, ok := QueueOwner(m.Consumer); ok {
		m.Consumer, m.Message.ID = keys, m.Key
		return m, true
	}
	return m, false
}
