package membroker

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// record is a stored message. It is never changed, and deliveries get copies.
type record struct {
	message   *broker.Message
	stored    time.Time
	partition int // of its log
}

type (
	buffer = inflight.Buffer[record]
	item   = inflight.Item[record]
)

// place is a queue or a group. The mutex of the broker guards it.
type place interface {
	join(*session)
	leave(*session) // returns its messages in flight
	buffers(*session) []*buffer
	all() []*buffer
	locate(*item) (at *broker.Position, origin string)
	reject(m *broker.Message, reason string, now time.Time)
	keepsRejected() bool
	session(*session) broker.Session
}

// queue has one buffer for all its sessions.
type queue struct {
	broker *Broker
	name   string
	buffer *buffer
}

func newQueue(b *Broker, name string) *queue {
	return &queue{broker: b, name: name, buffer: inflight.NewBuffer[record](0)}
}

func (q *queue) add(m *broker.Message, now time.Time) {
	q.buffer.Add(q.buffer.Next(), record{message: m, stored: now})
}

func (q *queue) join(*session) {}

func (q *queue) leave(s *session) { q.buffer.Reclaim(s.tracker) }

func (q *queue) buffers(*session) []*buffer { return []*buffer{q.buffer} }

func (q *queue) all() []*buffer { return []*buffer{q.buffer} }

func (q *queue) locate(it *item) (*broker.Position, string) {
	return nil, fmt.Sprintf("%s@%d", q.name, it.Offset)
}

func (q *queue) reject(m *broker.Message, reason string, now time.Time) {
	dead := clone(m)
	if dead.Header == nil {
		dead.Header = make(map[string]string)
	}
	dead.Header[broker.ReasonHeader] = reason
	q.broker.queue(q.name+".dead").add(dead, now)
}

func (q *queue) keepsRejected() bool { return true }

func (q *queue) session(s *session) broker.Session { return s }
