// Package membroker is a broker in memory, for tests. It is also the example to
// read before writing an adapter. What is in it is lost when the process ends, so
// never relay an outbox to it in production: package storebroker needs no broker
// either.
//
// It keeps every rule of package broker while the process lives. It has queues
// whose sessions compete for messages, as in RabbitMQ, and logs that groups read,
// as in Kafka. Both can fail on demand: see [Broker.Restart], [Broker.Down],
// [Broker.LoseAcks], [Broker.LoseConfirms] and [Broker.Duplicate]. It waits only
// on channels and timers, so a test may use testing/synctest if it creates the
// Broker inside the bubble. Its compatibility is that of package broker.
//
// One mutex guards everything, and no goroutine waits while holding it. Messages
// are in buffers of package inflight. A queue is one buffer that all its sessions
// take from (queue.go). A group of readers has a buffer for each partition, and
// each buffer has one session (log.go). Sessions are the same for both
// (session.go).
package membroker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// Retention is how long messages are kept. Older messages are no longer
	// delivered. Sources return it as their [broker.Horizon]. Default: for ever.
	Retention time.Duration

	// Deduplicate is how long the ID of a message is remembered. Another
	// message with the ID is confirmed and dropped meanwhile. Publishers return
	// it as their [broker.Deduplicator]. Default: IDs are not remembered.
	Deduplicate time.Duration

	// Cluster is the fact "cluster" that sources return as their
	// [broker.Located]. Default: empty.
	Cluster string
}

// Broker holds messages in memory. It is safe for concurrent use.
type Broker struct {
	options Options

	mu     inflight.Cond // broadcasts when a waiting session may find something
	queues map[string]*queue
	logs   map[string]*log
	bound  map[string][]*queue   // by topic
	open   map[*session]struct{} // sessions that are neither closed nor broken
	seen   map[string]time.Time  // when each ID was last stored
	swept  time.Time             // when old IDs were last dropped
	down   bool
	lose   struct{ acks, confirms int } // how many are still to be lost
	double int                          // how many messages are still to be stored twice
}

var (
	errDown       = errors.New("membroker: the broker is down: try again later")
	errBroken     = errors.New("membroker: the session is broken: close it and open another")
	errUnroutable = errors.New("membroker: no queue or log takes the topic: create one before publishing to it")
	errConfirm    = errors.New("membroker: the confirmation was lost: publish the message again")
)

// New returns a broker without queues and logs. A nil Options means the defaults.
func New(o *Options) *Broker {
	if o == nil {
		o = new(Options)
	}
	return &Broker{
		options: *o,
		queues:  make(map[string]*queue),
		logs:    make(map[string]*log),
		bound:   make(map[string][]*queue),
		open:    make(map[*session]struct{}),
		seen:    make(map[string]time.Time),
	}
}

// Queue returns a source whose sessions share the messages of a queue. The queue
// is created if it does not exist. It takes the messages of the topic with its
// own name; for other topics see [Broker.Bind].
//
// A message that is returned, or whose session ends, keeps its place before later
// ones. A rejected message goes to the queue whose name ends in ".dead", with the
// reason in the header "once-reason". Sessions are [broker.Delayer] and
// [broker.DeadLetterer].
func (b *Broker) Queue(name string) broker.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &source{broker: b, place: b.queue(name), name: "membroker queue " + name}
}

// Bind makes a queue take the messages of a topic that are published from now on.
// The queue is created if it does not exist.
func (b *Broker) Bind(queue, topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queue(queue); !slices.Contains(b.bound[topic], q) {
		b.bound[topic] = append(b.bound[topic], q)
	}
}

// Messages returns copies of the messages in a queue, in order, including those
// in flight.
func (b *Broker) Messages(queue string) []*broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ms []*broker.Message
	if q := b.queues[queue]; q != nil {
		for it := range q.buffer.Items() {
			ms = append(ms, clone(it.Value.message))
		}
	}
	return ms
}

// Log returns a source that reads the log of a topic for a group. The log is
// created if it does not exist. It has the number of partitions of the first call
// for its topic; with another number, Open fails. Messages with an equal
// OrderingKey go to one partition, others to all partitions in turn.
//
// The partitions of a log are assigned to the sessions of a group, and
// reassigned when sessions open and close. Unsettled messages of a reassigned
// partition come again, and settling the earlier deliveries is an error. For
// each partition, a group keeps the offset below which everything is settled.
// Messages that were settled after it are also redelivered when the partition
// moves. A new group starts at the first message. Redelivered is true up to the
// highest offset that was ever delivered to the group.
//
// The Log of a position is the topic, "#" and a number that [Broker.Recreate]
// changes. A returned message holds back the offset of the group and nothing
// else. Rejected messages are gone. Sessions are [broker.Delayer],
// [broker.DeadLetterer] and [broker.Seeker]. Seek also moves the offset of the
// group.
func (b *Broker) Log(topic, group string, partitions int) broker.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.logs[topic]
	if l == nil {
		l = newLog(topic, partitions)
		b.logs[topic] = l
	}
	s := &logSource{source{broker: b, place: l.group(group), name: fmt.Sprintf("membroker log %s for %s", topic, group)}, l}
	if partitions < 1 || partitions != len(l.records) {
		s.err = fmt.Errorf("%w: the log %q has %d partitions, not %d: every Log of one topic names the same number, "+
			"at least 1", broker.ErrInvalid, topic, len(l.records), partitions)
	}
	return s
}

// Recreate deletes the log of a topic and creates it again: it is empty, offsets
// start at 0, groups have read nothing, its sessions are broken, and its
// positions have another Log. It does nothing for a topic without a log.
func (b *Broker) Recreate(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.logs[topic]
	if l == nil {
		return
	}
	for s := range b.open {
		if g, ok := s.place.(*group); ok && g.log == l {
			s.breakOff()
		}
	}
	l.recreate()
}

// queue returns a queue, and creates it if it does not exist.
func (b *Broker) queue(name string) *queue {
	q := b.queues[name]
	if q == nil {
		q = newQueue(b, name)
		b.queues[name] = q
		b.bound[name] = append(b.bound[name], q)
	}
	return q
}
