package prove

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
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

// prove checks that the mistake is found, in a finding with all of these words,
// and that nothing is found in its corrected twin. All of the shop is in memory,
// so that this takes no real time. A service with a connection cannot be in a
// bubble.
func prove(t *testing.T, mistake, mended oncetest.Case[*shop], words ...string) {
	synctest.Test(t, func(t *testing.T) {
		expect(t, findings(t, mistake), words...)
		oncetest.Prove(struct{ testing.TB }{t}, mended) // a bubble has no subtests
	})
}

// findings returns what Prove reports about a case.
func findings(t *testing.T, c oncetest.Case[*shop]) []string {
	r := &recorder{TB: t}
	oncetest.Prove(r, c)
	return r.told
}

// expect checks that a finding has all the words.
func expect(t *testing.T, findings []string, words ...string) {
	t.Helper()
	found := false
	for _, told := range findings {
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
		t.Errorf("nothing that was found has the words %q:\n%s", words, strings.Join(findings, "\n"))
	}
}

// consumer is the service of most examples: the shop adds up payments by
// customer.
func consumer(p *oncetest.Process, s *shop) *inbox.Consumer {
	return &inbox.Consumer{Name: "billing", Source: p.Source(),
		Retry: inbox.Retry{First: time.Millisecond, Limit: 10 * time.Millisecond},
		Handler: inbox.Tx(oncetest.Store(p, s.db), func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
			return add(tx, m)
		})}
}

func right(ctx context.Context, p *oncetest.Process, s *shop) error { return consumer(p, s).Run(ctx) }

func TestAFreshKeyForEachAttempt(t *testing.T) {
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(*broker.Message) (string, error) { return rand.Text(), nil }
		return c.Run(ctx)
	}), oneCase(right), "twice in a row", "more than once", "another key when it was delivered again")
}

// The service is correct, but the kit cannot see its steps, and so could not
// find a mistake.
func TestAStoreThatIsNotSeen(t *testing.T) {
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Handler = inbox.Tx(s.db, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error { return add(tx, m) })
		return c.Run(ctx)
	}), oneCase(right), "takes no step through its Process", "oncetest.Store")
}

func TestAKeyFromATimestamp(t *testing.T) {
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(m *broker.Message) (string, error) { return m.Time.Format(time.RFC3339), nil }
		return c.Run(ctx)
	}), oneCase(right), "sent again with a later time", "more than once", "contains the message's time")
}

func TestAKeyThatIsTooCoarse(t *testing.T) {
	prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(m *broker.Message) (string, error) { return m.OrderingKey, nil } // the customer
		return c.Run(ctx)
	}), oneCase(right), "alone order-3", "taken for a duplicate", "too coarse")
}

// loop consumes one message at a time, like the examples of brokers.
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
			paid := &broker.Message{ID: m.ID + "-paid", Topic: "order.paid"} // in the transaction, with a stable ID
			return errors.Join(events.Put(ctx, tx, paid), add(tx, m))
		})
		relay := &outbox.Relay{Store: s.db, Publisher: p.Publisher(s.events.Publisher()),
			Lease: 500 * time.Millisecond, PublishTime: 200 * time.Millisecond} // short, because processes crash often here
		relayed := make(chan error, 1)
		go func() { relayed <- relay.Run(ctx) }()
		err := c.Run(ctx)
		return errors.Join(err, <-relayed)
	})
	mistake.Probe, mended.Probe = eventsToo, eventsToo
	mended.Quiet = time.Second // longer than the lease of a relay that crashed
	prove(t, mistake, mended, "crash after publish of order-1", "more than once", "published or requested before the commit")
}
