package membroker

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

// record is a message as it is stored, which is never handed out and never changed.
type record struct {
	message   *broker.Message
	stored    time.Time
	partition int // of a log
}

type (
	lane = desk.Lane[record]
	item = desk.Item[record]
)

// place is where the messages of sessions come from. The broker's mutex guards it.
type place interface {
	join(*session)
	leave(*session) // what it has out comes again
	lanes(*session) []*lane
	all() []*lane
	locate(*item) (at *broker.Position, origin string)
	reject(m *broker.Message, reason string, now time.Time)
	keepsRejected() bool
	session(*session) broker.Session
}

// queue is one lane for all its sessions.
type queue struct {
	broker *Broker
	name   string
	lane   *lane
}

func newQueue(b *Broker, name string) *queue {
	return &queue{broker: b, name: name, lane: desk.NewLane[record](0)}
}

func (q *queue) add(m *broker.Message, now time.Time) {
	q.lane.Add(q.lane.Next(), record{message: m, stored: now})
}

func (q *queue) join(*session) {}

func (q *queue) leave(s *session) { q.lane.TakeBack(s.desk) }

func (q *queue) lanes(*session) []*lane { return []*lane{q.lane} }

func (q *queue) all() []*lane { return []*lane{q.lane} }

func (q *queue) locate(it *item) (*broker.Position, string) {
	return nil, fmt.Sprintf("%s@%d", q.name, it.Offset)
}

func (q *queue) reject(m *broker.Message, reason string, now time.Time) {
	dead := clone(m)
	if dead.Header == nil {
		dead.Header = make(map[string]string)
	}
	dead.Header["once-reason"] = reason
	q.broker.queue(q.name+".dead").add(dead, now)
}

func (q *queue) keepsRejected() bool { return true }

func (q *queue) session(s *session) broker.Session { return s }
