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
	"github.com/effectively-once/once/store/memstore"
)

// A key whose attempts are used up is asked about before its message is parked,
// and the reason says that the outcome is unknown.
func TestAReplayDoublesNoEffectOfUnknownOutcome(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		key := once.Key{Operation: "mail", ID: "m0"}
		for attempt := range int64(2) { // two processes died in the middle of it; the effect of the second took place
			r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{byte(attempt + 1)}, Attempt: attempt}, Lease: time.Millisecond}
			if _, err := b.store.Claim(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			await(t, "the lease lapses", func() bool {
				rec, err := b.store.Get(t.Context(), key)
				return err == nil && rec.Status == once.Unknown
			})
		}
		var effects atomic.Int64
		effects.Store(1)
		var asked atomic.Int64
		c := doConsumer(b, &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
			asked.Add(1)
			return "sent", true, nil
		}}, func(context.Context, once.Key, *broker.Message) (string, error) {
			effects.Add(1)
			return "sent", nil
		})
		c.Retry = retryAtOnce(1)
		c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { d.Redelivered, d.Message.Attempt = true, 3 }}
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked or done", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
		if asked.Load() == 0 {
			t.Error("Lookup, which knows that it happened, was not asked")
		}
		tally, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"})
		if err != nil {
			t.Fatal(err)
		}
		if tally.Changed == 0 {
			return
		}
		await(t, "tried again", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
		if effects.Load() != 1 {
			t.Errorf("%d effects, and nobody said NotDone", effects.Load())
		}
	})
}

// Two people decide at the same time: one replays, one discards. Only one
// decision takes effect.
func TestADiscardThatLosesDropsNothing(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var healthy atomic.Bool
		c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if !healthy.Load() {
				return once.Permanent(errors.New("poison"))
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		healthy.Store(true)
		by := inbox.Decision{By: "me", Reason: "so"}
		var replayed inbox.Tally
		slow := &ill{Store: b.store}
		slow.change = func() (err error) {
			replayed, err = (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, by)
			return err
		}
		discarded, err := (inbox.Admin{Store: slow}).Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, by)
		if err != nil || replayed.Changed != 1 || discarded.Moved != 1 {
			t.Fatal(replayed, discarded, err)
		}
		await(t, "replayed", func() bool { return len(b.onTheShelf(store.Handled)) == 1 })
		if b.count("m0") != 1 {
			t.Error("Discard has left it alone, Replay has had it replayed, it counts as handled, and it has no effect")
		}
	})
}

func TestAnInterruptedReplayCanBeRepeated(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
			return "", once.NotDone(once.Permanent(errors.New("closed")))
		})
		stop := start(t, c)
		b.publish("orders", numbered(250)...)
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 250 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		decision := inbox.Decision{By: "me", Reason: "open", PerSecond: 1000}
		ctx, cancel := context.WithCancel(t.Context())
		first, err := inbox.Admin{Store: stopping{b.store, cancel, new(atomic.Int64)}}.Replay(ctx, store.ShelfQuery{}, decision)
		if err == nil || first.Changed == 0 || first.Changed >= 250 {
			t.Fatal("it was not interrupted:", first, err)
		}
		admin := inbox.Admin{Store: b.store}
		one, err := admin.Replay(t.Context(), store.ShelfQuery{Limit: 1}, decision)
		if err != nil || one.Changed != 1 {
			t.Error("one was asked for:", one, err)
		}
		rest, err := admin.Replay(t.Context(), store.ShelfQuery{}, decision)
		if err != nil || first.Changed+one.Changed+rest.Changed != 250 {
			t.Error(first, one, rest, err)
		}
		if _, err := admin.Discard(t.Context(), store.ShelfQuery{}, decision); !errors.Is(err, once.ErrInvalid) {
			t.Error("everything was discarded:", err)
		}
	})
}

// marred is a store whose pages begin with damage that is no message, such as an
// index that cannot be read.
type marred struct {
	*memstore.Store
	damage int
}

func (s marred) Shelved(ctx context.Context, q store.ShelfQuery) (page []store.Shelved, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	if q.After == 0 {
		for range min(s.damage, limit) {
			page = append(page, store.Shelved{Unopened: once.ErrCorrupt})
		}
	}
	if q.Limit = limit - len(page); q.Limit == 0 {
		return page, nil
	}
	ms, err := s.Store.Shelved(ctx, q)
	return append(page, ms...), err
}

// The limit of a decision counts decisions. Neither damage nor messages that are
// skipped use it up.
func TestTheLimitOfADecisionCountsDecisions(t *testing.T) {
	for _, damage := range []int{0, 1, 3, 150} {
		for _, limit := range []int{0, 1, 2, 9} {
			onBench(t, func(t *testing.T, b *bench) {
				c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error { return once.Permanent(errors.New("no")) })
				stop := start(t, c)
				b.publish("orders", numbered(5)...)
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 5 })
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				want := min(limit, 5)
				if limit == 0 {
					want = 5
				}
				got, err := inbox.Admin{Store: marred{b.store, damage}}.Replay(t.Context(), store.ShelfQuery{Limit: limit}, inbox.Decision{By: "me", Reason: "a test"})
				if err != nil || got.Changed != want || len(b.onTheShelf(store.Waiting)) != want {
					t.Errorf("of 5 messages, at most %d, with %d damaged: %+v, %v", limit, damage, got, err)
				}
			})
		}
	}
}

// mended is a store whose damage is repaired after the first page.
type mended struct {
	marred
	pages int
}

func (s *mended) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if s.pages++; s.pages > 1 {
		return s.Store.Shelved(ctx, q)
	}
	return s.marred.Shelved(ctx, q)
}

// A page has more messages than one decides about if damage was repaired meanwhile.
func TestADecisionKeepsToItsLimitWhenDamageIsRepaired(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.shelve("billing", message(fmt.Sprint("m", i)))
		}
		q := store.ShelfQuery{Consumer: "billing", Limit: 1}
		got := b.discardWaiting(&mended{marred: marred{b.store, 3}}, q)
		if left := len(b.onTheShelf(store.Waiting)); got.Changed != 1 || left != 4 {
			t.Errorf("%+v, and %d are left", got, left)
		}
	})
}

// parkingStore calls decide before it parks the key of a message, which is on the
// shelf by then.
type parkingStore struct {
	*memstore.Store
	decide func()
}

func (s *parkingStore) Settle(ctx context.Context, set once.Settlement) error {
	if set.Status == once.Parked {
		s.decide()
	}
	return s.Store.Settle(ctx, set)
}

// lateClaims is a store whose first claim of a key outside a transaction fails.
type lateClaims struct {
	*memstore.Store
	did atomic.Bool
}

func (s *lateClaims) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if !s.did.Swap(true) {
		return once.Record{}, errors.New("connection reset")
	}
	return s.Store.Claim(ctx, r)
}

// A person may discard a message although its key could not be parked. The
// broker still has it, and delivers it again.
func TestADiscardHoldsIfTheKeyIsNotParked(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls atomic.Int64
		s := &lateClaims{Store: b.store}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(1), Stats: new(inbox.Stats)}
		c.Handler = inbox.Tx(s, func(context.Context, mtx, *broker.Message) error {
			calls.Add(1)
			return errors.New("no")
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked on the shelf", func() bool { return len(b.onTheShelf(store.Parked)) == 1 })
		got, err := inbox.Admin{Store: b.store}.Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, discards)
		if err != nil || got.Changed != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		await(t, "the broker's copy is a duplicate", func() bool { return c.Stats.Duplicates.Load() == 1 || calls.Load() > 1 })
		if all := b.onTheShelf(); calls.Load() != 1 || len(all) != 1 || all[0].State != store.Discarded {
			t.Errorf("tried %d times; on the shelf: %+v", calls.Load(), all)
		}
	})
}

// shelfThatParksSlowly calls meanwhile before it answers that a message is parked.
type shelfThatParksSlowly struct {
	*memstore.Store
	meanwhile func()
	did       atomic.Bool
}

func (s *shelfThatParksSlowly) Shelve(ctx context.Context, ms []store.Shelved) error {
	err := s.Store.Shelve(ctx, ms)
	if ms[0].State == store.Parked && !s.did.Swap(true) {
		s.meanwhile()
	}
	return err
}

// A replay that is older than an attempt does not say what that attempt did.
func TestAnEarlyReplayFreesNoKeyOfUnknownOutcome(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		key := once.Key{Operation: "mail", ID: "m0"}
		s := &shelfThatParksSlowly{Store: b.store, meanwhile: func() {
			by := inbox.Decision{By: "me", Reason: "at once"}
			if tally, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{Consumer: "mail"}, by); err != nil || tally.Changed != 1 {
				t.Errorf("%+v, %v", tally, err)
			}
			await(t, "an unknown outcome", func() bool {
				rec, err := b.store.Get(t.Context(), key)
				return err == nil && rec.Status == once.Unknown
			})
		}}
		var calls, mails atomic.Int64
		c := &inbox.Consumer{Name: "mail", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats),
			Retry: inbox.Retry{Attempts: 2, First: 100 * time.Millisecond, Limit: 3 * time.Second, Outage: -1}}
		lookup := func(context.Context, once.Key) (string, bool, error) { return "sent", mails.Load() > 0, nil }
		c.Handler = inbox.Do(s, &once.Operation[string]{Lookup: lookup}, func(context.Context, once.Key, *broker.Message) (string, error) {
			if calls.Add(1) <= 2 {
				return "", once.NotDone(errors.New("connection refused"))
			}
			mails.Add(1)
			return "", errors.New("timeout")
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "a person's decision, or the answer of Lookup", func() bool {
			rec, err := b.store.Get(t.Context(), key)
			return err == nil && (rec.Status == once.Done || len(b.onTheShelf(store.Parked)) == 1 && rec.Status == once.Parked && mails.Load() > 0)
		})
		if mails.Load() != 1 {
			t.Errorf("%d mails, and nobody said that the first was not sent", mails.Load())
		}
	})
}

// parkedUnheard is a store whose first reply to Shelve is lost.
type parkedUnheard struct {
	*memstore.Store
	calls atomic.Int64
}

func (s *parkedUnheard) Shelve(ctx context.Context, ms []store.Shelved) error {
	err := s.Store.Shelve(ctx, ms)
	if s.calls.Add(1) == 1 {
		err = errors.Join(err, errors.New("connection reset"))
	}
	return err
}

// A message is parked because it fails, and its consumer does not hear that. In the
// next attempt the outcome is unknown, and the shelf still has the first reason.
func TestAReplayFreesNoKeyWhoseOutcomeIsUnknownSince(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls, charges atomic.Int64
		c := &inbox.Consumer{Name: "charge", Source: b.broker.Queue("orders"), Retry: retryAtOnce(1), Stats: new(inbox.Stats)}
		op := &once.Operation[string]{OnUnknown: once.Park}
		c.Handler = inbox.Do(&parkedUnheard{Store: b.store}, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			if calls.Add(1) == 1 {
				return "", once.NotDone(errors.New("connection refused"))
			}
			charges.Add(1)
			return "", errors.New("timeout")
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "an unknown outcome", func() bool {
			rec, err := b.store.Get(t.Context(), once.Key{Operation: "charge", ID: "m0"})
			return err == nil && rec.Status == once.Parked && charges.Load() == 1
		})
		by := inbox.Decision{By: "me", Reason: "it failed"}
		if _, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{Consumer: "charge"}, by); err != nil {
			t.Error(err)
		}
		await(t, "a parked message whose reason says so", func() bool {
			parked := b.onTheShelf(store.Parked)
			return len(parked) == 1 && strings.HasPrefix(parked[0].Reason, store.UnknownOutcome)
		})
		if n := charges.Load(); n != 1 {
			t.Errorf("%d charges, and nobody said that the first was not made", n)
		}
	})
}

// A person may decide about a message that was just parked, before its key is.
func TestTheKeyOfAParkedMessageFollowsAnEarlyDecision(t *testing.T) {
	for _, decision := range []string{"replay", "discard"} {
		t.Run(decision, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				admin, by := inbox.Admin{Store: b.store}, inbox.Decision{By: "me", Reason: "at once"}
				s := &parkingStore{b.store, func() {
					decide := admin.Replay
					if decision == "discard" {
						decide = admin.Discard
					}
					if tally, err := decide(t.Context(), store.ShelfQuery{Consumer: "billing"}, by); err != nil || tally.Changed != 1 {
						t.Errorf("%+v, %v", tally, err)
					}
				}}
				var calls atomic.Int64
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(1), Stats: new(inbox.Stats)}
				c.Handler = inbox.Tx(s, func(ctx context.Context, tx mtx, m *broker.Message) error {
					if calls.Add(1) == 1 {
						return errors.New("not now")
					}
					b.add(tx, m.ID)
					return nil
				})
				start(t, c)
				b.publish("orders", message("m0"))
				await(t, "the end", func() bool {
					rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: "m0"})
					return err == nil && rec.Status == once.Done
				})
				if want := map[string]int{"replay": 1, "discard": 0}[decision]; b.count("m0") != want {
					t.Errorf("handled %d times, want %d", b.count("m0"), want)
				}
			})
		})
	}
}
