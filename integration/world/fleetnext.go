package world

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

// cause is whose handling of which message puts another one.
type cause struct {
	consumer string // empty: a producer puts it
	of       *letter
}

// mostNext is how many messages follow from one, at most, each put by the handling
// of the one before.
const mostNext = 2

// planNext plans the messages that consumers of a message put when they handle it,
// and those that follow from these.
func (m *mail) planNext(at *letter, depth int) {
	if m.isFar(at.topic) || depth == mostNext {
		return
	}
	for _, consumer := range m.ledger.readersOf(at.topic) {
		s := m.shapeOf(consumer)
		switch d, next := m.Trait("next of "+at.id+" at "+consumer, m.Fleet.Next); {
		case consumer == bridgeName:
			m.planOne(at, consumer, len(m.Topics)-1, 1)
		case consumer == mailerName, s.Position && !s.Keyed: // it would put one for each copy
		case next:
			for n := range 1 + d.Number(2) {
				m.planNext(m.planOne(at, consumer, d.Number(len(m.Topics)-m.Fleet.far()), n+1), depth+1)
			}
		}
	}
}

// planOne plans a message. All that a consumer puts of the messages of an ordering
// key has an ordering key of its own, or none.
func (m *mail) planOne(at *letter, consumer string, topic, n int) *letter {
	id, key := fmt.Sprintf("%s+%s%d", at.id, consumer, n), at.key
	if key != "" {
		key += "+" + consumer + strconv.Itoa(topic)
	}
	next := m.ledger.plan(id, m.Topics[topic], key, nil)
	next.cause = cause{consumer, at}
	at.next = append(at.next, next)
	return next
}

// putNext puts the messages that the handling of a message is the cause of. The
// bridge puts the message as it was delivered, with another ID.
func (h *handler) putNext(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
	for _, at := range h.ledger.causedBy(m.ID, h.consumer) {
		next := *m
		if h.consumer != bridgeName {
			next = broker.Message{Body: []byte(at.id)}
		}
		next.ID, next.Topic, next.OrderingKey = at.id, at.topic, at.key
		if err := outbox.New(h.store.Link(h.p), nil).Put(ctx, tx, &next); err != nil {
			return err
		}
		h.ledger.within(tx, fact{id: at.id})
	}
	return nil
}

// causedBy returns the messages that a consumer puts when it handles one.
func (l *ledger) causedBy(id, consumer string) (all []*letter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, next := range l.letters[id].next {
		if next.cause.consumer == consumer {
			all = append(all, next)
		}
	}
	return all
}

// puts records that the transaction of a message has committed. Those of handlers
// follow each other in the order of their commits. Its caller holds mu.
func (l *ledger) puts(m *letter) {
	if m.cause.of != nil && m.key != "" && !m.isPut && !m.lost {
		m.before, l.lastPut[m.key] = l.lastPut[m.key], m
	}
	m.isPut, m.putAt = true, time.Now()
}

// mayBePut reports whether a message that is not put is still to be. Its caller
// holds mu.
func (l *ledger) mayBePut(m *letter) bool {
	return m.cause.of == nil || m.cause.of.at[m.cause.consumer].done > 0
}

// isStored judges that a broker has stored a message under its ID.
func (m *mail) isStored(id string, b *broker.Message) {
	m.ledger.publish(id, m.whereIs)
	if m.log == nil { // which is told before the store adds them
		m.ledger.judgeHeaders(id, b.Header)
	}
}

// judgeHeaders judges that a message names the work that put it, and that the numbers
// of an ordering key rise.
func (l *ledger) judgeHeaders(id string, header map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m.lost {
		return // it may be another one with its ID
	}
	by := once.Key{Operation: "order", ID: id}
	if m.cause.of != nil {
		by = once.Key{Operation: m.cause.consumer + "-" + m.cause.of.topic, ID: m.cause.of.id}
	}
	if got := header[broker.KeyHeader]; got != by.String() {
		l.world.Broke(Appeared, id, "published with the cause %q, and %s/%s has put it", got, by.Operation, by.ID)
	}
	seq, err := strconv.ParseInt(header[broker.SeqHeader], 10, 64)
	if err != nil {
		l.world.Broke(PublishedIn, id, "published with the number %q", header[broker.SeqHeader])
	}
	if m.seq != 0 && m.seq != seq {
		l.world.Broke(PublishedIn, id, "published again with the number %d, and it had %d", seq, m.seq)
	}
	m.seq = seq
	for e := m.before; e != nil; e = e.before {
		if e.seq >= seq {
			l.world.Broke(PublishedIn, id, "published with the number %d, and %s before it had %d", seq, e.id, e.seq)
			return
		}
	}
}

// follow returns the topics that get messages because of a message of one.
func (m *mail) follow(topic string) []string {
	if len(m.Fleet.Readers) > 0 {
		return m.Topics
	}
	return []string{topic}
}
