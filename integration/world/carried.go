package world

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Carrier are the settings of a store that carries the messages itself.
type Carrier struct {
	On          bool
	Lease, Poll time.Duration // of package storebroker
}

// carrier is the store as a broker, as a process sees it.
func (m *mail) carrier(p *sim.Process) *storebroker.Broker {
	o := &storebroker.Options{Lease: m.Carrier.Lease, Poll: m.Carrier.Poll, Logger: m.logger}
	if d := m.lifeOf(p); d != nil {
		o.Lease = oneOf(d, 0, 2*time.Second, 20*time.Second)
	}
	return storebroker.New(m.store.Link(p), o)
}

// queue is the queue of a consumer in the store, as seen by nobody.
func (m *mail) queue(topic, consumer string) broker.Source {
	return storebroker.New(m.store.Store, nil).Queue(topic).(broker.Subscriber).For(consumer + "-" + topic)
}

// sourceOf returns the source of a consumer in a process.
func (m *mail) sourceOf(p *sim.Process, topic, consumer string) broker.Source {
	if m.Carrier.On {
		return m.carrier(p).Queue(topic)
	}
	src := m.broker.Source(p, m.source(topic, consumer), "")
	if m.Shelving.Stutters > 0 && consumer == ledgerName {
		return &stuttering{src, p, m}
	}
	return src
}

// publisherOf returns the publisher of a relay.
func (m *mail) publisherOf(p *sim.Process) broker.Publisher {
	if m.Carrier.On {
		return &carrying{m.carrier(p).Publisher().(outbox.HandingOver), m}
	}
	return m.broker.Publisher(p)
}

// carrying counts messages that the store does not take, unless it is down.
type carrying struct {
	outbox.HandingOver
	*mail
}

func (c *carrying) Publish(ctx context.Context, ms []*broker.Message) []error {
	was := c.IsDown(sim.StoreName)
	return c.count(ms, c.HandingOver.Publish(ctx, ms), was)
}

func (c *carrying) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, as []*broker.Message, then store.Ending) []error {
	was := c.IsDown(sim.StoreName)
	return c.count(as, c.HandingOver.HandOver(ctx, relay, ms, as, then), was)
}

func (c *carrying) count(ms []*broker.Message, errs []error, wasDown bool) []error {
	if wasDown || c.IsDown(sim.StoreName) {
		return errs
	}
	for i, err := range errs {
		if err != nil && !errors.Is(err, broker.ErrNotYet) {
			c.ledger.refusedOnce(ms[i].ID)
		}
	}
	return errs
}

// queued is told of each row that a queue of the store takes.
func (m *mail) queued(row store.Shelved) {
	if _, queue := store.QueueOwner(row.Consumer); queue {
		m.lanes.published(row.Key)
		m.isStored(row.Key, &row.Message)
		return
	}
	m.ledger.shelves(row.Key, consumerOf(row))
}

// awaitConsumers waits until all consumers of a topic are registered, as a queue
// begins with its consumer. Whoever deploys a service starts them first.
func (m *mail) awaitConsumers(ctx context.Context, p *sim.Process, topic string) error {
	d := m.Seed.Draw(p.Name, "looks for consumers")
	for m.Carrier.On && !m.registered(topic) {
		if err := sim.Sleep(ctx, d.Between(20*time.Millisecond, 100*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

func (m *mail) registered(topic string) bool {
	all, _ := m.store.Store.Consumers(context.Background())
	n := 0
	for _, c := range all {
		if c.Source == store.TopicSource(topic) && c.Keys == c.Name { // under its first name
			n++
		}
	}
	return n == len(m.ledger.readersOf(topic))
}

// carriedSettings has no outages of a broker, as there is none.
func carriedSettings(seed sim.Seed) sim.Settings {
	s := shapesSettings(seed)
	s.Outages = slices.DeleteFunc(s.Outages, func(o sim.Outage) bool { return o.Link != sim.StoreName && o.Link != Downstream })
	return s
}

// carriedMail is a small world without a broker.
func carriedMail(seed sim.Seed) MailPlan {
	p := shapesMail(seed)
	d := seed.Draw("carried")
	p.Carrier = Carrier{true, oneOf(&d, 0, 2*time.Second, 20*time.Second), oneOf(&d, 0, time.Second, 3*time.Second)}
	p.Shape.Batch = p.Shape.Batch || p.Shape.Position && d.Chance(.5)
	p.Shape.Position, p.Shape.Keyed, p.Queues = false, false, false
	return p
}
