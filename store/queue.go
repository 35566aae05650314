package store

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

// queueSuffix makes the Consumer of the rows of a queue. No consumer can have it:
// the name of a consumer or of its rebuild has no two @ in a row.
const queueSuffix = "@@queue"

// DeliveredTo begins the Reason of a row of a queue that a process has, until its
// Due has come.
const DeliveredTo = "delivered to "

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

// NewQueued returns the row of a message in the queue of a consumer. id is that of
// the row, by which the queue takes it once.
func NewQueued(keys, id string, m broker.Message) Shelved {
	row := Shelved{Consumer: QueueOf(keys), Key: m.ID, Message: m, Origin: TopicSource(m.Topic), State: Waiting, Reason: "in the queue"}
	row.Message.ID, row.Message.Attempt = id, 0
	row.Message.Header = renamed(m.Header, broker.SealedHeader, broker.SealedField)
	return row
}

// Queued is the reverse of NewQueued: it returns the message as its consumer gets
// it. The row is opened: see [OpenShelved].
func Queued(row Shelved) broker.Message {
	m := row.Message
	m.ID, m.Header = row.Key, renamed(m.Header, broker.SealedField, broker.SealedHeader)
	return m
}

// renamed returns headers with another name for one of them. It does not change
// them.
func renamed(header map[string]string, from, to string) map[string]string {
	value, there := header[from]
	if !there {
		return header
	}
	header = maps.Clone(header)
	delete(header, from)
	header[to] = value
	return header
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
