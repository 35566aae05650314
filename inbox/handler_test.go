package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// An error that a step of the handler returned does not settle the message,
// whatever it wraps.
func TestAHandlersErrorIsAFailureWhateverItWraps(t *testing.T) {
	for _, met := range []error{once.ErrExpired, once.ErrOutcomeUnavailable} {
		onEach(t, func(t *testing.T, b *bench, sh shape) {
			c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error { return fmt.Errorf("the step before: %w", met) })
			start(t, c)
			b.publish("orders", message("m0"))
			await(t, "m0", func() bool { return c.Stats.Parked.Load()+c.Stats.Duplicates.Load() > 0 })
			if c.Stats.Parked.Load() != 1 {
				t.Errorf("%v: it failed, its transaction was rolled back, and it was acknowledged as a duplicate", met)
			}
		})
	}
}

// A message on the shelf is treated in the same way.
func TestAHandlersErrorOnTheShelfIsAFailureWhateverItWraps(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Retry: retryAtOnce(4), Stats: new(inbox.Stats),
			Handler: inbox.Tx(b.store, func(context.Context, mtx, *broker.Message) error {
				return fmt.Errorf("the step before: %w", once.ErrExpired)
			})}
		b.shelve("c", message("m0"))
		start(t, c)
		await(t, "an attempt", func() bool { return c.Stats.Parked.Load()+c.Stats.Duplicates.Load() > 0 })
		if len(b.onTheShelf(store.Parked)) != 1 {
			t.Error("it failed and is gone from the shelf:", b.onTheShelf())
		}
	})
}

// A batch counts no attempts at messages that were handled before.
func TestADuplicateThatComesOftenIsADuplicate(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[1].consumer(b, b.effect)
		b.broker.LoseAcks(12)
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "twelve duplicates", func() bool { return c.Stats.Duplicates.Load() >= 12 || c.Stats.Parked.Load() > 0 })
		if found := b.onTheShelf(); len(found) > 0 {
			t.Errorf("m0 has %d effects, and is parked: %s", b.count("m0"), found[0].Reason)
		}
	})
}

// If a function of the user panics, its message is parked, and the process
// continues.
func TestAFunctionThatPanicsHasItsMessageParked(t *testing.T) {
	oops := func(m *broker.Message) string { return strings.Split(string(m.Body), "/")[1] }
	for name, set := range map[string]func(*inbox.Consumer){
		"Key":     func(c *inbox.Consumer) { c.Key = func(m *broker.Message) (string, error) { return oops(m), nil } },
		"Input":   func(c *inbox.Consumer) { c.Input = func(m *broker.Message) []byte { return []byte(oops(m)) } },
		"OrderBy": func(c *inbox.Consumer) { c.OrderBy = oops },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				c := shapes[0].consumer(b, b.effect)
				set(c)
				b.publish("orders", message("m0"))
				start(t, c)
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
			})
		})
	}
}

type sqlError struct{ text string }

func (e *sqlError) Error() string { return e.text }

// A nil pointer in an error does not end the process.
func TestANilErrorOfAPointerTypeIsAFailure(t *testing.T) {
	if os.Getenv("INBOX_NIL_ERROR") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestANilErrorOfAPointerTypeIsAFailure$")
		cmd.Env = append(os.Environ(), "INBOX_NIL_ERROR=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%.600s", err, out[max(strings.Index(string(out), "panic:"), 0):])
		}
		return
	}
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error {
			var err *sqlError
			return err
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
	})
}

// A handler that ends its goroutine does not reduce the number of workers.
func TestAHandlerThatEndsItsGoroutineStopsNoOtherMessage(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "m0" {
				runtime.Goexit()
			}
			return b.effect(ctx, tx, m)
		})
		c.Concurrency = 1
		start(t, c)
		b.publish("orders", numbered(2)...)
		await(t, "m1", func() bool { return b.count("m1") == 1 })
	})
}

func TestAPanicIsAFailure(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				panic("poison")
			}
			return nil
		})
		start(t, c)
		b.publish("orders", message("bad"), message("m0"))
		await(t, "one parked, one handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 1 })
		found, _ := b.store.Shelved(t.Context(), store.ShelfQuery{})
		if len(found) != 1 || !strings.Contains(found[0].Reason, "the handler panicked, see the log") || strings.Contains(found[0].Reason, "poison") {
			t.Error(found)
		}
	})
}

func TestDuplicateIsAnAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.failing("twin", inbox.Duplicate(errors.New("order 1 has an invoice"))))
		start(t, c)
		b.publish("orders", message("m0"), message("twin"), message("m1"))
		await(t, "two handled, one prevented", func() bool { return c.Stats.Handled.Load() == 2 && c.Stats.Prevented.Load() == 1 })
		if b.count("twin") != 0 || b.count("m0") != 1 || b.count("m1") != 1 {
			t.Error("effects:", b.count("twin"), b.count("m0"), b.count("m1"))
		}
		b.broker.Restart()
		if c.Stats.Parked.Load() != 0 {
			t.Error("it was parked")
		}
	})
}
