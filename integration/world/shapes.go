package world

import (
	"context"
	"errors"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/memstore"
)

// Shape is how the consumer with a transaction handles messages.
type Shape struct {
	Batch     bool // several in a transaction, each with its key
	Position  bool // several in a transaction, with the position of the consumer in its log
	Charged   bool // each in a transaction, after an effect at the downstream
	Keyed     bool // with a Position, each has its key as well
	Names     bool // the handler of several tells which one has failed
	BatchSize int  // how many share a transaction; 0: the default
}

// set gives a consumer its handler.
func (s Shape) set(c *inbox.Consumer, h *handler) {
	link := h.store.Link(h.p)
	c.BatchSize, c.Checkpoint = s.BatchSize, s.Position
	if s.Keyed {
		c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
	}
	switch {
	case s.Charged:
		c.Handler = inbox.DoThenTx(link, h.operation(h.p, callName), h.charge, h.rowAfter)
	case s.Batch, s.Position:
		c.Handler = inbox.Batch(link, h.inBatch)
	default:
		c.Handler = inbox.Tx(link, h.inTx)
	}
}

// inBatch handles several messages with a row for each.
func (h *handler) inBatch(ctx context.Context, tx *memstore.Tx, ms []*broker.Message) error {
	one := *h
	one.company = len(ms) > 1
	return h.attempts(ms, func() error {
		for _, m := range ms {
			err := one.row(inbox.For(ctx, m), tx, m)
			if err != nil && h.shapeOf(h.consumer).Names {
				return inbox.Failed(m, err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// attempts counts an attempt against messages if their handler fails them, or if it
// fails while nothing is down, or never ends. One that fails in company is handled
// again in less of it, and no attempt counts until it is alone, or if its process is
// told to stop.
func (h *handler) attempts(ms []*broker.Message, handle func() error) error {
	for _, m := range ms {
		h.ledger.begin(m.ID, h.consumer)
	}
	was := h.AnyDown()
	err := handle()
	for _, m := range ms {
		switch {
		case h.p.IsDead():
			h.ledger.kill(m.ID, h.consumer)
		case err != nil && (len(ms) > 1 || h.isStopped(err)):
			h.ledger.spare(m.ID, h.consumer)
		case err != nil && !errors.Is(err, errBusiness) && (was || h.AnyDown() || errors.Is(err, errSick)):
			h.ledger.excuse(m.ID, h.consumer)
		}
		if err != nil && !h.p.IsDead() {
			h.ledger.ends(m.ID, h.consumer)
		}
	}
	return err
}

// spare takes an attempt at a message back that another one of its batch failed.
func (l *ledger) spare(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id].at[consumer].failed--
}

// records is how many messages a consumer takes a message for, each with attempts of
// its own: a position tells deliveries of a record of the log from each other, and
// not records that have the same message.
func (l *ledger) records(m *letter, consumer string) int {
	if l.rules.shapeOf(consumer).Position {
		return m.stored
	}
	return 1
}

// lost is how many calls about a message went wrong, by themselves. A consumer with a
// position counts attempts by the place of a message in its log, which tells nobody
// here whose they are.
func (l *ledger) lost(m *letter, consumer string) int {
	n := l.world.FaultsAbout(consumer, m.id) + l.lostAttempts(m, consumer)
	if l.rules.shapeOf(consumer).Position {
		n += l.world.FaultsAbout(consumer, consumer+"-"+m.topic+"@@attempts")
	}
	return n
}

// mayHandle is how often a consumer may handle a message. Keys tell records apart.
func (l *ledger) mayHandle(m *letter, consumer string) int {
	if l.rules.shapeOf(consumer).Keyed {
		return 1
	}
	return l.records(m, consumer)
}

// stores counts the records that a broker makes of a message.
func (l *ledger) stores(id string, times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id].stored += times
}

// shapesSettings are those of a small world, with stops in order.
func shapesSettings(seed sim.Seed) sim.Settings {
	s := smallSettings(seed)
	d := seed.Draw("stops")
	s.Stops = d.Number(3)
	return s
}

// shapesMail is a small world whose consumers have shapes of their own.
func shapesMail(seed sim.Seed) MailPlan {
	p := smallMail(seed)
	d := seed.Draw("shapes")
	p.Shape = Shape{Names: d.Chance(.5), BatchSize: oneOf(&d, 0, 2, 5)}
	switch n := d.Number(10); {
	case n < 2:
		p.Shape.Charged = true
	case n < 5:
		p.Shape.Batch = true
	default:
		p.Shape.Position, p.Shape.Keyed, p.Queues = true, d.Chance(.5), false
		p.Processes = oneOf(&d, 1, 2, 2, 3) // partitions go to and fro
	}
	p.Rolling, p.Renames, p.Joins = d.Chance(.5), d.Chance(.5), d.Chance(.3)
	if d.Chance(.1) {
		p.Deadly, p.Attempts = .1, 2+d.Number(3)
	}
	if d.Chance(.25) {
		p.Operators = 1 + d.Number(2)
	}
	return p
}
