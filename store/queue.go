package store

import (
	"context"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

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

// topicPrefix begins the name of the source of a topic whose messages come through
// the store.
const topicPrefix = "store topic "

// TopicSource returns the name of the source of a topic whose messages come through
// the store. All its consumers are registered with this source.
func TopicSource(topic string) string { return topicPrefix + topic }

// TopicOf is the reverse of TopicSource, with or without facts: see [SourceText].
func TopicOf(source string) (topic string, ok bool) {
	name, _ := SplitSource(source)
	return strings.CutPrefix(name, topicPrefix)
}

// queueLagLimit is how many messages QueueLag counts.
const queueLagLimit, queueLagPage = 10_000, 1000

// QueueLag counts the messages that wait in the queue of a consumer, or that its
// processes have, up to 10,000. The age is by the clock of this process.
func QueueLag(ctx context.Context, s Shelf, keys string) (lag broker.Lag, err error) {
	q := ShelfQuery{Consumer: QueueOf(keys), States: []ShelfState{Waiting}, Limit: queueLagPage, Bodiless: true}
	for {
		rows, err := s.Shelved(ctx, q)
		if err != nil {
			return broker.Lag{}, err
		}
		if lag.Messages == 0 && len(rows) > 0 {
			lag.Oldest = max(time.Since(rows[0].Created), 0)
		}
		if lag.Messages += int64(len(rows)); len(rows) < queueLagPage || lag.Messages >= queueLagLimit {
			return lag, nil
		}
		q.After = rows[len(rows)-1].Seq
	}
}
