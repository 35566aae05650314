package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// The shelf orders messages by OrderBy, not by their OrderingKey.
func TestTheShelfKeepsTheOrderOfOrderBy(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.failing("m0", once.Permanent(errors.New("poison"))))
		if c.Source = b.broker.Queue("alone"); sh.log {
			c.Source = b.broker.Log("alone", "billing", 1)
		}
		c.OrderBy = func(*broker.Message) string { return "account 7" }
		start(t, c)
		b.publish("alone", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		b.publish("alone", message("m1"))
		await(t, "m1", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
		if c.Stats.Handled.Load() != 0 {
			t.Error("m1 was handled before m0, which it has to wait for")
		}
	})
}

// Later messages of a batch wait for one that is parked without being handled.
func TestMessagesAfterAKeylessOneOfTheirOrderingKeyWait(t *testing.T) {
	for _, sh := range shapes {
		if sh.name == "log" || sh.name == "log, batch" {
			continue // no keys
		}
		t.Run(sh.name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				c := sh.consumer(b, b.effect)
				c.Key = func(m *broker.Message) (string, error) {
					if m.ID == "m0" {
						return "", errors.New("no order id in the body")
					}
					return m.ID, nil
				}
				b.publish("orders")
				b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
				start(t, c)
				await(t, "both", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
				if c.Stats.Handled.Load() != 0 {
					t.Error("OnParked is HoldOrder, m0 is parked, and m1 was handled")
				}
			})
		})
	}
}

// A message went to the shelf, and the reply was lost. Later messages still
// wait for it.
func TestALostReplyKeepsTheOrderOfAMessageSetAside(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var bad atomic.Bool
		step := 0
		st := &ill{Store: b.store, at: func(inner func() error) error {
			err := inner()
			if !bad.Load() {
				return err
			}
			switch step++; step {
			case 2: // 1 is the handler's failure; this is setAside
				if err != nil {
					t.Error(err)
				}
				return fmt.Errorf("%w: the connection broke at the commit", once.ErrOutcomeUnknown)
			case 3:
				bad.Store(false)
				return errors.New("connection refused")
			}
			return err
		}}
		c := logConsumer(b)
		c.Handler = inbox.Tx[mtx](st, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "m0" {
				bad.Store(true)
				return once.RetryAfter(time.Hour, errors.New("not today"))
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"))
		await(t, "m0 is dealt with", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
		if found := b.onTheShelf(store.Waiting); len(found) != 1 {
			t.Fatal(found)
		}
		b.publish("orders", ordered("m1", "k"))
		await(t, "m1 is dealt with", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 2 })
		if b.count("m1") != 0 {
			t.Error("m1 was handled before m0, which waits on the shelf")
		}
	})
}

// The key of a Kafka record may have any bytes, but the shelf takes only text.
func TestAnOrderingKeyNeedNotBeText(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				c := sh.consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
				c.Concurrency = 1
				src := b.broker.Queue("alone")
				if sh.log {
					src = b.broker.Log("alone", "billing", 1)
				}
				c.Source = bent{Source: src, arrive: func(d *broker.Delivery) { d.Message.OrderingKey = "\x00\x00\x00\x2a" }}
				b.publish("alone", message("bad"), message("m0"))
				start(t, c)
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
			})
		})
	}
}

// A message with a too long ordering key does not cause another one to be
// parked.
func TestATooLongOrderingKeyIsHandled(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[4].consumer(b, b.effect)
		c.Source = bent{Source: b.broker.Log("alone", "billing", 1), arrive: func(d *broker.Delivery) {
			if d.Message.ID == "m3" {
				d.Message.OrderingKey = strings.Repeat("k", 300)
			}
		}}
		b.publish("alone", numbered(6)...)
		start(t, c)
		await(t, "something", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() >= 5 })
		for _, m := range b.onTheShelf(store.Parked) {
			if m.Message.ID != "m3" {
				t.Errorf("%s is parked: %s", m.Message.ID, m.Reason)
			}
		}
	})
}

// In a batch, later messages wait for one whose key is not known to be free.
func TestABatchWaitsForOneThatWaitsForItsKey(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		r := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "billing", ID: "m0"}, Owner: [16]byte{1}}, Lease: time.Millisecond}
		if _, err := b.store.Claim(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		await(t, "the lease lapses", func() bool {
			rec, err := b.store.Get(t.Context(), r.Key)
			return err == nil && rec.Status == once.Unknown
		})
		c := shapes[1].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			was, _ := tx.Get("log")
			tx.Set("log", was+m.ID+" ")
			return nil
		})
		b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
		start(t, c)
		await(t, "both", func() bool { return c.Stats.Handled.Load() == 2 })
		if got, _ := b.store.Value("log"); got != "m0 m1 " {
			t.Error("handled in the order", got)
		}
	})
}

// A slow handler of a message from the shelf does not hold up messages that are
// shelved later.
func TestAMessageOnTheShelfDoesNotHoldUpOthers(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		begun, gate := make(chan struct{}), make(chan struct{})
		c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "slow" {
				close(begun)
				<-gate
			}
			return b.effect(ctx, tx, m)
		})
		b.shelve("billing", message("slow"))
		start(t, c)
		defer close(gate)
		<-begun
		b.shelve("billing", message("m0"))
		await(t, "m0, which is due and has no order, while seven places are free", func() bool { return b.count("m0") == 1 })
	})
}

func TestPassLetsLaterMessagesOfAParkedKeyBy(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
		c.OnParked = inbox.Pass
		start(t, c)
		b.publish("orders", ordered("bad", "k"), ordered("m0", "k"), ordered("m1", "k"))
		await(t, "one parked, two handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 2 })
	})
}

func TestDiscardReleasesLaterMessagesOfTheOrderingKey(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
		start(t, c)
		b.publish("orders", ordered("bad", "k"), ordered("m0", "k"), ordered("m1", "k"))
		await(t, "one parked, two behind", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load() == 2 })
		admin := inbox.Admin{Store: b.store}
		if _, err := admin.Discard(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me"}); !errors.Is(err, once.ErrInvalid) {
			t.Error("a decision without a reason:", err)
		}
		got, err := admin.Discard(t.Context(), store.ShelfQuery{IDs: []string{"bad"}}, inbox.Decision{By: "me", Reason: "a test order"})
		if err != nil || got.Changed != 1 {
			t.Fatal(got, err)
		}
		await(t, "those behind", func() bool { return c.Stats.Handled.Load() == 2 })
		found, err := admin.List(t.Context(), store.ShelfQuery{})
		if err != nil || len(found) != 1 || found[0].State != store.Discarded || !strings.Contains(found[0].History, "discarded by me: a test order") {
			t.Error(found, err)
		}
		if !sh.log { // a copy of it is no news
			before := c.Stats.Handled.Load() + c.Stats.Duplicates.Load()
			b.publish("orders", ordered("bad", "k"))
			await(t, "the copy", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > before })
		}
		if b.count("bad") != 0 {
			t.Error("a discarded message has an effect")
		}
	})
}
