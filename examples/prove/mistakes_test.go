package prove

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/oncetest"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

type run = func(context.Context, *oncetest.Process, *shop) error

func oneCase(r run) oncetest.Case[*shop] {
	return oncetest.Case[*shop]{Setup: newShop, Run: r, Probe: balances, Messages: orders()}
}

// prove has the mistake found, in a finding with all of these words, and nothing found in its twin.
func prove(t *testing.T, mistake, mended oncetest.Case[*shop], words ...string) {
	r := &recorder{TB: t}
	oncetest.Prove(r, mistake)
	found := false
	for _, told := range r.told {
		all := true
		for _, word := range words {
			all = all && strings.Contains(told, word)
		}
		if found = found || all; all {
			t.Log("found, as it should be:\n" + told)
			break
		}
	}
	if !found {
		t.Errorf("nothing that was found has the words %q:\n%s", words, strings.Join(r.told, "\n"))
	}
	oncetest.Prove(t, mended)
}

// consumer is the service of most examples: the shop adds up what customers pay.
func consumer(p *oncetest.Process, s *shop) *inbox.Consumer {
	return &inbox.Consumer{Name: "billing", Source: p.Source(),
		Retry: inbox.Retry{First: time.Millisecond, Limit: 10 * time.Millisecond},
		Handler: inbox.Tx(oncetest.Store(p, s.db), func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
			return add(tx, m)
		})}
}

func right(ctx context.Context, p *oncetest.Process, s *shop) error { return consumer(p, s).Run(ctx) }

func TestAFreshKeyForEachAttempt(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(*broker.Message) (string, error) { return rand.Text(), nil }
		return c.Run(ctx)
	}), oneCase(right), "twice in a row", "more than once", "another key when it came again")
}

// Nothing is wrong with the service, but the kit cannot see what it does, and so could not find anything either.
func TestAStoreThatIsNotSeen(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Handler = inbox.Tx(s.db, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error { return add(tx, m) })
		return c.Run(ctx)
	}), oneCase(right), "takes no step through its Process", "oncetest.Store")
}

func TestAKeyFromATimestamp(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(m *broker.Message) (string, error) { return m.Time.Format(time.RFC3339), nil }
		return c.Run(ctx)
	}), oneCase(right), "sent again with a later time", "more than once", "made of the message's time")
}

func TestAKeyThatIsTooCoarse(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(m *broker.Message) (string, error) { return m.OrderingKey, nil } // the customer
		return c.Run(ctx)
	}), oneCase(right), "alone order-3", "swallowed", "too coarse")
}

// loop consumes one message at a time, the way that examples of brokers do.
func loop(ctx context.Context, p *oncetest.Process, handle func(broker.Session, broker.Delivery) error) error {
	for ctx.Err() == nil {
		session, err := p.Source().Open(ctx, 1)
		if err != nil {
			return err
		}
		for err == nil {
			var ds []broker.Delivery
			if ds, err = session.Receive(ctx, 1); err == nil {
				err = handle(session, ds[0])
			}
		}
		_ = session.Close(context.WithoutCancel(ctx))
	}
	return nil
}

func TestAckBeforeCommit(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		return loop(ctx, p, func(session broker.Session, d broker.Delivery) error {
			if err := session.Ack(ctx, []broker.Delivery{d}); err != nil {
				return err
			}
			tx := s.db.Begin()
			defer tx.Rollback()
			return errors.Join(add(tx, d.Message), tx.Commit())
		})
	}), oneCase(right), "crash after ack of order-1", "work was lost", "acknowledged before its work was committed")
}

func TestAnIncrementWithoutAClaim(t *testing.T) {
	t.Parallel() // most of it is waiting
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		return loop(ctx, p, func(session broker.Session, d broker.Delivery) error {
			tx := s.db.Begin()
			defer tx.Rollback()
			if err := errors.Join(add(tx, d.Message), tx.Commit()); err != nil {
				return err
			}
			return session.Ack(ctx, []broker.Delivery{d})
		})
	}), oneCase(right), "twice in a row", "more than once", "no key was claimed")
}

func TestPublishOutsideTheTransaction(t *testing.T) {
	t.Parallel() // most of it is waiting
	mistake := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c, events := consumer(p, s), p.Publisher(s.events.Publisher())
		c.Handler = inbox.Tx(oncetest.Store(p, s.db), func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			paid := &broker.Message{ID: m.ID + "-" + rand.Text(), Topic: "order.paid"}
			return errors.Join(append(events.Publish(ctx, []*broker.Message{paid}), add(tx, m))...)
		})
		return c.Run(ctx)
	})
	mended := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c, events := consumer(p, s), outbox.New(s.db, nil)
		c.Handler = inbox.Tx(oncetest.Store(p, s.db), func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			paid := &broker.Message{ID: m.ID + "-paid", Topic: "order.paid"} // in the commit, with the ID that it will always have
			return errors.Join(events.Put(ctx, tx, paid), add(tx, m))
		})
		relay := &outbox.Relay{Store: s.db, Publisher: p.Publisher(s.events.Publisher()),
			Lease: 500 * time.Millisecond, PublishTime: 200 * time.Millisecond} // processes die all the time here
		relayed := make(chan error, 1)
		go func() { relayed <- relay.Run(ctx) }()
		err := c.Run(ctx)
		return errors.Join(err, <-relayed)
	})
	mistake.Probe, mended.Probe = eventsToo, eventsToo
	mended.Quiet = time.Second // longer than the lease of a relay that has died
	prove(t, mistake, mended, "crash after publish of order-1", "more than once", "published or requested before the commit")
}
