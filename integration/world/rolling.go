package world

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// attemptsMore is how many attempts some lives of a consumer have beside those of
// the plan.
const attemptsMore = 3

// mostAttempts is how many attempts any life of a consumer has.
func (p MailPlan) mostAttempts() int {
	if p.Rolling {
		return p.Attempts + attemptsMore
	}
	return p.Attempts
}

// lifeOf returns the chances of the settings of one life of a process. As in a
// deployment, those of the lives before and beside it are others.
func (m *mail) lifeOf(p *sim.Process) *sim.Draw {
	if !m.Rolling {
		return nil
	}
	d := m.Seed.Draw("settings of", p.Name)
	return &d
}

func oneOf[T any](d *sim.Draw, of ...T) T { return of[d.Number(len(of))] }

// rollConsumer changes the settings of a consumer.
func (m *mail) rollConsumer(p *sim.Process, c *inbox.Consumer) {
	d := m.lifeOf(p)
	if d == nil {
		return
	}
	c.Concurrency, c.Window = oneOf(d, 0, 1, 3), oneOf(d, 0, 1, 4)
	c.Policy.Lease = oneOf(d, 0, 5*time.Second, time.Minute)
	c.Retry.Attempts += oneOf(d, 0, 1, attemptsMore)
	c.Retry.Limit = oneOf(d, 10*time.Second, 20*time.Second) // the default leaves no time for more attempts
	c.StopTime = oneOf(d, 0, time.Second)
	if m.Renames && d.Chance(.5) && m.knows(c.Name) {
		c.Name, c.RenamedFrom = c.Name+"-new", c.Name
	}
}

// knows reports whether a consumer has run under a name, as whoever renames it
// knows.
func (m *mail) knows(name string) bool {
	all, _ := m.store.Store.Consumers(context.Background())
	return slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Name == name })
}

// rollRelay changes the settings of a relay.
func (m *mail) rollRelay(p *sim.Process, r *outbox.Relay) {
	d := m.lifeOf(p)
	if d == nil {
		return
	}
	r.Batch, r.Then = oneOf(d, r.Batch, 0, 2), oneOf(d, store.Delete, store.Keep, store.Archive)
	r.Lease = oneOf(d, 0, 6500*time.Millisecond, 9*time.Second) // a third of it is enough to release lanes at the end
	r.PublishTime = oneOf(d, 0, 3*time.Second)
	r.StopTime = oneOf(d, 0, time.Second)
}

// rolled is the shape of a consumer with a transaction in one life. A version may begin, or cease, to
// handle several messages at once.
func (m *mail) rolled(p *sim.Process, consumer string) Shape {
	s := m.shapeOf(consumer)
	if d := m.lifeOf(p); d != nil {
		s.BatchSize = oneOf(d, 0, 1, 2, 5)
		s.Batch = d.Chance(.5) && !s.Position && !s.Charged
	}
	return s
}

// isStopped reports whether a handler failed because its process was told to stop.
func (h *handler) isStopped(err error) bool {
	return errors.Is(err, context.Canceled) && h.p.IsStopped()
}
