//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var errDead = errors.New("the process is dead")

// machine is the store of a bench as one process sees it.
type machine struct {
	*memstore.Store
	options *once.Options
	log     *logtest.Log
	dead    atomic.Bool
	change  func(context.Context, store.Shelved) error // instead of that of the store
	refuses func() bool                                // a transaction may not write the shelf
}

func (b *bench) machine() *machine {
	m := &machine{Store: b.store, log: new(logtest.Log)}
	m.options = once.Options{Logger: slog.New(slog.NewTextHandler(m.log, nil))}.Ready()
	return m
}

func (m *machine) Options() *once.Options { return m.options }

func (m *machine) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	return m.Store.Shelved(ctx, q)
}

func (m *machine) Change(ctx context.Context, s store.Shelved) error {
	switch {
	case m.dead.Load():
		return errDead
	case m.change != nil:
		return m.change(ctx, s)
	}
	return m.Store.Change(ctx, s)
}

func (m *machine) ChangeTx(ctx context.Context, tx *memstore.Tx, s store.Shelved) error {
	if m.refuses != nil && m.refuses() {
		return once.ErrLeaseLost
	}
	return m.Store.ChangeTx(ctx, tx, s)
}

func (m *machine) Extend(ctx context.Context, f once.Fence, d time.Duration) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Extend(ctx, f, d)
}

func (m *machine) Settle(ctx context.Context, s once.Settlement) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Settle(ctx, s)
}

// consumer handles what is put on the shelf. If beside is set, it does so beside
// transactions.
func (m *machine) consumer(b *bench, beside bool, handle func(context.Context) error) *inbox.Consumer {
	c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
	if beside {
		op := &once.Operation[string]{OnUnknown: once.Resend, Policy: once.Policy{Lease: 6 * time.Second}}
		c.Handler = inbox.Do(m, op, func(ctx context.Context, _ once.Key, msg *broker.Message) (string, error) {
			if err := handle(ctx); err != nil {
				return "", err
			}
			tx := b.store.Begin()
			b.add(tx, msg.ID)
			return "", tx.Commit()
		})
		return c
	}
	c.Handler = inbox.Tx(m, func(ctx context.Context, tx *memstore.Tx, msg *broker.Message) error {
		if err := handle(ctx); err != nil {
			return err
		}
		b.add(tx, msg.ID)
		return nil
	})
	return c
}

func (b *bench) putOnShelf(id string) {
	b.t.Helper()
	m := store.Shelved{Consumer: "billing", Key: id, Message: *message(id), Origin: "orders@0",
		State: store.Waiting, Reason: "it failed before"}
	m.Message.Topic = "orders"
	if err := b.store.Shelve(b.t.Context(), []store.Shelved{m}); err != nil {
		b.t.Fatal(err)
	}
}

func inAndBesideTransactions(t *testing.T, test func(t *testing.T, b *bench, beside bool)) {
	for name, beside := range map[string]bool{"Tx": false, "Do": true} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) { test(t, b, beside) })
		})
	}
}

// Whoever waits for it says so.
func TestAMessageThatADeadProcessTookFromTheShelfIsFreeInTenSeconds(t *testing.T) {
	inAndBesideTransactions(t, func(t *testing.T, b *bench, beside bool) {
		first, second := b.machine(), b.machine()
		began := make(chan struct{})
		dies := make(chan struct{})
		start(t, first.consumer(b, beside, func(context.Context) error {
			close(began)
			<-dies
			return errDead
		}))
		b.putOnShelf("m0")
		<-began
		time.Sleep(20 * time.Second) // it works, and renews its lease
		first.dead.Store(true)
		close(dies)
		died := time.Now()
		start(t, second.consumer(b, beside, func(context.Context) error { return nil }))
		if !sleepUntil(10*time.Second, func() bool { return b.count("m0") == 1 }) {
			t.Errorf("not handled after %v; on the shelf: %+v", time.Since(died), b.onTheShelf())
		}
		log := second.log.String()
		if !strings.Contains(log, "wait for a process that tried them") || !strings.Contains(log, "holder=\"process ") {
			t.Errorf("it does not say for whom it waited: %s", log)
		}
	})
}

func TestAMessageFromTheShelfIsKeptFromOthersWhileItsHandlerRuns(t *testing.T) {
	inAndBesideTransactions(t, func(t *testing.T, b *bench, beside bool) {
		var calls atomic.Int64
		for range 3 {
			start(t, b.machine().consumer(b, beside, func(context.Context) error {
				calls.Add(1)
				time.Sleep(time.Minute)
				return nil
			}))
		}
		b.putOnShelf("m0")
		sleepUntil(3*time.Minute, func() bool {
			for _, m := range b.onTheShelf() {
				if m.Attempts > 1 {
					t.Fatalf("another process has it: %+v", m)
				}
			}
			return b.count("m0") == 1 && len(b.onTheShelf()) == 0
		})
		if calls.Load() != 1 || b.count("m0") != 1 || len(b.onTheShelf()) != 0 {
			t.Errorf("%d calls, %d effects, on the shelf: %+v", calls.Load(), b.count("m0"), b.onTheShelf())
		}
	})
}

// The process does not know which version the row has.
func TestALostReplyToARenewalOnTheShelfRepeatsNothing(t *testing.T) {
	for name, lost := range map[string]func(context.Context) error{
		"an error": func(context.Context) error { return errors.New("connection reset") },
		"silence":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			inAndBesideTransactions(t, func(t *testing.T, b *bench, beside bool) {
				var calls atomic.Int64
				var handling atomic.Bool
				m := b.machine()
				m.change = func(ctx context.Context, s store.Shelved) error {
					err := b.store.Change(ctx, s)
					if handling.Load() && err == nil && s.State == store.Waiting {
						return lost(ctx)
					}
					return err
				}
				start(t, m.consumer(b, beside, func(context.Context) error {
					calls.Add(1)
					handling.Store(true)
					defer handling.Store(false)
					time.Sleep(3 * time.Second)
					return nil
				}))
				b.putOnShelf("m0")
				sleepUntil(time.Minute, func() bool { return b.count("m0") == 1 && len(b.onTheShelf()) == 0 })
				if calls.Load() != 1 || b.count("m0") != 1 || len(b.onTheShelf()) != 0 {
					t.Errorf("%d calls, %d effects, on the shelf: %+v", calls.Load(), b.count("m0"), b.onTheShelf())
				}
			})
		})
	}
}

// A transaction whose process has lost the message writes nothing.
func TestAMessageOnTheShelfThatIsLostHasNoSecondEffect(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		cut := b.machine()
		var handling atomic.Bool
		cut.change = func(ctx context.Context, s store.Shelved) error {
			if handling.Load() {
				return errors.New("cut off")
			}
			return b.store.Change(ctx, s)
		}
		start(t, cut.consumer(b, false, func(context.Context) error {
			handling.Store(true)
			time.Sleep(time.Minute)
			return nil
		}))
		b.putOnShelf("m0")
		sleepUntil(10*time.Second, handling.Load)
		start(t, b.machine().consumer(b, false, func(context.Context) error { return nil }))
		sleepUntil(3*time.Minute, func() bool { return b.count("m0") == 1 && len(b.onTheShelf()) == 0 })
		time.Sleep(2 * time.Minute)
		if b.count("m0") != 1 || len(b.onTheShelf()) != 0 {
			t.Errorf("%d effects, on the shelf: %+v", b.count("m0"), b.onTheShelf())
		}
	})
}

// Above READ COMMITTED, a transaction may not change a row that was renewed since
// it began.
func TestALongTransactionOnASnapshotIsRepeatedOnce(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		m := b.machine()
		var handling, renewed atomic.Bool
		var calls atomic.Int64
		m.change = func(ctx context.Context, s store.Shelved) error {
			renewed.Store(handling.Load())
			return b.store.Change(ctx, s)
		}
		m.refuses = renewed.Load
		start(t, m.consumer(b, false, func(context.Context) error {
			calls.Add(1)
			handling.Store(true)
			defer handling.Store(false)
			time.Sleep(20 * time.Second)
			return nil
		}))
		b.putOnShelf("m0")
		sleepUntil(5*time.Minute, func() bool { return b.count("m0") == 1 && len(b.onTheShelf()) == 0 })
		if calls.Load() != 2 || b.count("m0") != 1 || len(b.onTheShelf()) != 0 {
			t.Errorf("%d calls, %d effects, on the shelf: %+v", calls.Load(), b.count("m0"), b.onTheShelf())
		}
	})
}

// Each attempt is counted by a write of which the process hears nothing. No handler
// has run, so none of these attempts counts, whichever process makes the next one.
func TestAnAttemptOnTheShelfThatCouldNotBeginIsNotCounted(t *testing.T) {
	for name, lost := range map[string]func(context.Context) error{
		"an error": func(context.Context) error { return errors.New("connection reset") },
		"silence":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			inAndBesideTransactions(t, func(t *testing.T, b *bench, beside bool) {
				var begun atomic.Int64
				for range 2 {
					m := b.machine()
					m.change = func(ctx context.Context, s store.Shelved) error {
						err := b.store.Change(ctx, s)
						if err == nil && strings.HasPrefix(s.Reason, "begun, ") && begun.Add(1) <= 7 {
							return lost(ctx)
						}
						return err
					}
					c := m.consumer(b, beside, func(context.Context) error { return nil })
					c.Retry.Attempts = 3
					start(t, c)
				}
				b.putOnShelf("m0")
				sleepUntil(5*time.Minute, func() bool { return b.count("m0") == 1 || len(b.onTheShelf(store.Parked)) > 0 })
				if b.count("m0") != 1 || begun.Load() < 8 {
					t.Errorf("%d effects after %d attempts, on the shelf: %+v", b.count("m0"), begun.Load(), b.onTheShelf())
				}
			})
		})
	}
}
