// Package membroker is a broker inside the process: for tests and demos, and as the model to read before writing
// an adapter.
//
// It keeps every rule of package broker, for as long as the process lives: it survives no crash. It has queues that
// compete for messages as those of RabbitMQ do, and logs that groups read as those of Kafka are read, and both can go
// wrong on demand: see [Broker.Restart], [Broker.Down], [Broker.LoseAcks], [Broker.LoseConfirms] and
// [Broker.Duplicate]. It waits on channels and timers only, so a test may fake its time with testing/synctest; the
// Broker is made inside the bubble then. Its compatibility is that of package broker.
//
// One mutex guards everything, and nothing waits while holding it. Messages stand in lanes (package desk): a queue is one
// lane that all its sessions take from (queue.go), a group of readers has one for each partition, and each lane has
// one session (log.go). What a session does is the same for both (session.go).
package membroker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

// Options are the options of a Broker. The zero value works.
type Options struct {
	// Retention is how long messages are kept: one that was published longer ago is not delivered any more, and lost
	// if it never was. It is what sources say as their [broker.Horizon]. Default: for ever.
	Retention time.Duration

	// Deduplicate is how long the ID of a message is remembered; another one with it is confirmed and dropped meanwhile.
	// It is what publishers say as a [broker.Deduplicator]. Default: not at all.
	Deduplicate time.Duration

	// Cluster is what sources say where they are, as a [broker.Located]. Default: they say nothing.
	Cluster string
}

// Broker holds messages in memory. All methods may be called concurrently.
type Broker struct {
	options Options

	mu     desk.Bell // rings when a session that waits may find something
	queues map[string]*queue
	logs   map[string]*log
	bound  map[string][]*queue   // to a topic
	open   map[*session]struct{} // sessions that are neither closed nor broken
	seen   map[string]time.Time  // when an ID was last stored
	swept  time.Time             // when those that are too old were last dropped
	down   bool
	lose   struct{ acks, confirms int } // how many are still to be lost
	double int                          // how many messages are still to be stored twice
}

var (
	errDown       = errors.New("membroker: the broker is down: try again later")
	errBroken     = errors.New("membroker: the session is broken: close it and open another")
	errUnroutable = errors.New("membroker: no queue or log takes the topic: make one before publishing to it")
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

// Queue is a source that shares the messages of a queue among its sessions. The queue is made if it is not there yet,
// and takes the messages of the topic with its own name; for other topics see [Broker.Bind].
//
// A message that is returned, or whose session ends, goes back to where it stood: in front of those that came later.
// One that is rejected goes to the queue of that name with ".dead" at its end, with the reason in the header
// "once-reason". Sessions are [broker.Delayer] and [broker.DeadLetterer].
func (b *Broker) Queue(name string) broker.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &source{broker: b, place: b.queue(name), name: "membroker queue " + name}
}

// Bind lets a queue, which is made if it is not there yet, take the messages of a topic that are published from now on.
func (b *Broker) Bind(queue, topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queue(queue); !slices.Contains(b.bound[topic], q) {
		b.bound[topic] = append(b.bound[topic], q)
	}
}

// Messages returns copies of the messages in a queue, in order: those that wait and those that are not settled yet.
func (b *Broker) Messages(queue string) []*broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ms []*broker.Message
	if q := b.queues[queue]; q != nil {
		for it := range q.lane.Items() {
			ms = append(ms, clone(it.Value.message))
		}
	}
	return ms
}

// Log is a source that reads the log of a topic for a group. The log is made if it is not there yet; it has as many
// partitions as the first call for its topic says, and another number is an error of Open. Messages with an equal
// OrderingKey go to one partition, others to all of them in turn.
//
// Each session of a group has partitions for itself, which are dealt out anew when sessions come and go; what was not
// settled in one that moves comes again, and settling it is an error. What a group keeps is, for each partition, up
// to where everything was settled, and no more: messages that were settled beyond that come again too when the
// partition moves. A new group begins at the first message. Redelivered is true at or below the highest offset that
// was ever delivered to the group.
//
// Positions have the topic, "#" and a number as their Log, and the number changes with [Broker.Recreate]. A returned
// message holds up nothing but what the group keeps. Rejected messages are gone. Sessions are [broker.Delayer],
// [broker.DeadLetterer] and [broker.Seeker]; Seek also moves what the group keeps.
func (b *Broker) Log(topic, group string, partitions int) broker.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.logs[topic]
	if l == nil {
		l = newLog(topic, partitions)
		b.logs[topic] = l
	}
	s := &source{broker: b, place: l.group(group), name: fmt.Sprintf("membroker log %s for %s", topic, group)}
	if partitions < 1 || partitions != len(l.records) {
		s.err = fmt.Errorf("%w: the log %q has %d partitions and not %d: every Log of one topic names the same number, "+
			"at least 1", broker.ErrInvalid, topic, len(l.records), partitions)
	}
	return s
}

// Recreate makes the log of a topic anew: it is empty, offsets start at 0, groups have read nothing, its sessions are
// broken, and its positions name another log. Nothing happens to a topic without a log.
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

// queue finds a queue or makes it.
func (b *Broker) queue(name string) *queue {
	q := b.queues[name]
	if q == nil {
		q = newQueue(b, name)
		b.queues[name] = q
		b.bound[name] = append(b.bound[name], q)
	}
	return q
}
