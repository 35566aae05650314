package prove

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/oncetest"
	"github.com/effectively-once/once/store/memstore"
)

// Many messages share a transaction, and each has its own claim.
func TestABatch(t *testing.T) {
	t.Parallel() // it mostly waits
	oncetest.Prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Handler = inbox.Batch(oncetest.Store(p, s.db), func(_ context.Context, tx *memstore.Tx, ms []*broker.Message) error {
			for _, m := range ms {
				if err := add(tx, m); err != nil {
					return inbox.Failed(m, err)
				}
			}
			return nil
		})
		return c.Run(ctx)
	}))
}

// A duplicate in business terms has another message ID. The key is the number
// of the order.
func TestTheSameOrderInAnotherMessage(t *testing.T) {
	number := func(m *broker.Message) string { return m.ID[:len("order-1")] }
	mistake := oneCase(right)
	mended := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		c.Key = func(m *broker.Message) (string, error) { return number(m), nil }
		return c.Run(ctx)
	})
	mistake.Work, mended.Work = number, number
	prove(t, mistake, mended, "sent again with another ID", "more than once", "The key is the ID of the message")
}

// provider takes payments over HTTP. It remembers their idempotency keys.
type provider struct {
	mu    sync.Mutex
	known map[string]bool
	shop  *shop
}

func (o *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if key != "" && o.known[key] {
		return
	}
	o.known[key] = true
	tx := o.shop.db.Begin() // as if it had its own database
	err := add(tx, &broker.Message{OrderingKey: r.Header.Get("Customer"), Body: []byte(r.Header.Get("Amount"))})
	if err = errors.Join(err, tx.Commit()); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// A request charges a card. Its reply can be lost, so it is sent again, with
// the same key each time.
func TestARequestWithoutItsKey(t *testing.T) {
	t.Parallel() // it mostly waits
	charging := func(keyed bool) oncetest.Case[*shop] {
		var mu sync.Mutex
		addresses := make(map[*shop]string)
		c := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
			mu.Lock()
			address := addresses[s]
			mu.Unlock()
			client := http.Client{Transport: p.Transport(nil)}
			op := &once.Operation[int]{OnUnknown: once.Resend}
			c := consumer(p, s)
			c.Handler = inbox.Do(oncetest.Plain(p, s.db), op, func(ctx context.Context, key once.Key, m *broker.Message) (int, error) {
				r, err := http.NewRequestWithContext(ctx, "POST", address+"/charges", nil)
				if err != nil {
					return 0, err
				}
				r.Header.Set("Customer", m.OrderingKey)
				r.Header.Set("Amount", string(m.Body))
				if keyed {
					r.Header.Set("Idempotency-Key", key.String())
				}
				answer, err := client.Do(r)
				if err != nil {
					return 0, err
				}
				return answer.StatusCode, answer.Body.Close()
			})
			return c.Run(ctx)
		})
		c.Setup = func(t testing.TB) *shop {
			s := newShop(t)
			server := httptest.NewServer(&provider{known: make(map[string]bool), shop: s})
			t.Cleanup(server.Close)
			mu.Lock()
			defer mu.Unlock()
			addresses[s] = server.URL
			return s
		}
		return c
	}
	told := findings(t, charging(false))
	expect(t, told, "crash after POST /charges of order-2", "more than once", "before the commit")
	expect(t, told, "lost reply after POST /charges of order-2", "more than once")
	oncetest.Prove(t, charging(true))
}

// A handler may fail now and then: the message is tried again.
func TestAHandlerThatFailsAtFirst(t *testing.T) {
	t.Parallel() // it mostly waits
	oncetest.Prove(t, oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c, seen := consumer(p, s), make(map[string]bool)
		var mu sync.Mutex
		c.Retry = inbox.Retry{Attempts: 30, First: time.Millisecond, Limit: time.Millisecond}
		c.Handler = inbox.Tx(oncetest.Store(p, s.db), func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if !seen[m.ID] {
				seen[m.ID] = true
				return errors.New("the connection pool is exhausted")
			}
			return add(tx, m)
		})
		return c.Run(ctx)
	}))
}

// A charge, and then its row, in one consumer. If the process dies between the two,
// the provider has the charge. In a handler of inbox.Do, Lookup then answers for the
// whole handler, and the row is never written. With inbox.DoThenTx, the charge is a
// step with a key of its own, and the row is written with its answer.
func TestARowAfterACharge(t *testing.T) {
	charge := func(ctx context.Context, p *oncetest.Process, s *shop, key once.Key) error {
		tx := s.db.Begin() // as if the provider had its own database
		tx.Set("charge "+key.ID, "made")
		err := tx.Commit()
		p.Step("charge of " + key.ID)
		return err
	}
	lookup := func(s *shop) func(context.Context, once.Key) (int, bool, error) {
		return func(_ context.Context, key once.Key) (int, bool, error) {
			_, made := s.db.Value("charge " + key.ID)
			return 0, made, nil
		}
	}
	mistake := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		op := &once.Operation[int]{Lookup: lookup(s), Policy: once.Policy{Lease: 300 * time.Millisecond}}
		c.Handler = inbox.Do(oncetest.Plain(p, s.db), op, func(ctx context.Context, key once.Key, m *broker.Message) (int, error) {
			if err := charge(ctx, p, s, key); err != nil {
				return 0, err
			}
			tx := s.db.Begin()
			return 0, errors.Join(add(tx, m), tx.Commit())
		})
		return c.Run(ctx)
	})
	mended := oneCase(func(ctx context.Context, p *oncetest.Process, s *shop) error {
		c := consumer(p, s)
		op := &once.Operation[int]{Name: "charge", Lookup: lookup(s), Policy: once.Policy{Lease: 300 * time.Millisecond}}
		c.Handler = inbox.DoThenTx(oncetest.Store(p, s.db), op, func(ctx context.Context, key once.Key, m *broker.Message) (int, error) {
			return 0, charge(ctx, p, s, key)
		}, func(_ context.Context, tx *memstore.Tx, m *broker.Message, _ int) error { return add(tx, m) })
		return c.Run(ctx)
	})
	prove(t, mistake, mended, "crash after charge of order-2", "inbox.DoThenTx")
}
