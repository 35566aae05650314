package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// parkingShop is a consumer of effects whose attempts fail, without effect, until
// it is healthy. An effect whose outcome is unknown waits for a person.
type parkingShop struct {
	*inbox.Consumer
	healthy atomic.Bool
	done    atomic.Int64
}

func newParkingShop(b *bench, s once.Store) *parkingShop {
	shop := &parkingShop{Consumer: &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(2), Stats: new(inbox.Stats)}}
	shop.Handler = inbox.Do(s, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
		if !shop.healthy.Load() {
			return "", once.NotDone(errors.New("not now"))
		}
		shop.done.Add(1)
		return "", nil
	})
	b.publish("orders", message("m0"))
	start(b.t, shop.Consumer)
	return shop
}

// wantHandledAfterReplay has the parked message tried again.
func (shop *parkingShop) wantHandledAfterReplay(b *bench) {
	b.t.Helper()
	shop.healthy.Store(true)
	_, err := inbox.Admin{Store: b.store}.Replay(b.t.Context(), store.ShelfQuery{Consumer: "billing"}, discards)
	must(b.t, err)
	time.Sleep(time.Hour)
	for _, m := range b.onTheShelf(store.Parked) {
		b.t.Errorf("it is parked again: %s", m.Reason)
	}
	if n := shop.done.Load(); n != 1 {
		b.t.Errorf("a replayed message was handled %d times", n)
	}
}

// copiedMeanwhile is a store in which a copy of a message is tried, without effect,
// just before the claim that parks its key.
type copiedMeanwhile struct {
	*memstore.Store
	parking atomic.Bool
	once    sync.Once
}

func (s *copiedMeanwhile) Shelve(ctx context.Context, ms []store.Shelved) error {
	s.parking.Store(ms[0].State == store.Parked)
	return s.Store.Shelve(ctx, ms)
}

func (s *copiedMeanwhile) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	if s.parking.Load() && r.Key.Operation == "billing" {
		s.once.Do(func() {
			f := once.Fence{Key: r.Key, Owner: [16]byte{9}}
			rec, err = s.Store.Claim(ctx, once.ClaimRequest{Fence: f, Lease: time.Minute})
			if f.Attempt = rec.Attempt; err == nil {
				err = s.Store.Settle(ctx, once.Settlement{Fence: f, Status: once.Absent, KeepKey: time.Hour})
			}
		})
	}
	if err != nil {
		return rec, err
	}
	return s.Store.Claim(ctx, r)
}

// The claim that parks a key counts a copy that was tried since the key was read.
// It does not stay.
func TestAKeyIsParkedAlthoughACopyWasTriedMeanwhile(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		shop := newParkingShop(b, &copiedMeanwhile{Store: b.store})
		await(t, "parked", func() bool { return shop.Stats.Parked.Load() == 1 })
		if rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: "m0"}); err != nil || rec.Status != once.Parked {
			t.Errorf("the key is %v, %v", rec.Status, err)
		}
		shop.wantHandledAfterReplay(b)
	})
}

// parkedLate is a store in which a key is parked after its message was replayed,
// between the look of the shelf's worker at the key and its claim.
type parkedLate struct {
	*memstore.Store
	parking, replayed atomic.Bool
	goOn, parked      chan struct{}
}

func (s *parkedLate) Shelve(ctx context.Context, ms []store.Shelved) error {
	if ms[0].State == store.Parked {
		defer s.parking.Store(true)
	}
	return s.Store.Shelve(ctx, ms)
}

func (s *parkedLate) Get(ctx context.Context, k once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, k)
	switch {
	case k.Operation != "billing":
	case s.parking.CompareAndSwap(true, false):
		<-s.goOn
		return s.Store.Get(ctx, k)
	case s.replayed.CompareAndSwap(true, false):
		close(s.goOn)
		<-s.parked
	}
	return rec, err
}

func (s *parkedLate) Settle(ctx context.Context, set once.Settlement) error {
	err := s.Store.Settle(ctx, set)
	if set.Status == once.Parked {
		select {
		case <-s.parked:
		default:
			close(s.parked)
		}
	}
	return err
}

// A person may have a message tried again before its consumer has parked its key.
func TestAKeyThatIsParkedLateStopsNoReplay(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		s := &parkedLate{Store: b.store, goOn: make(chan struct{}), parked: make(chan struct{})}
		shop := newParkingShop(b, s)
		await(t, "on the shelf", func() bool { return len(b.onTheShelf(store.Parked)) == 1 })
		s.replayed.Store(true)
		shop.wantHandledAfterReplay(b)
	})
}

// A consumer with Checkpoint and Key parks the key by the same owner as any other,
// whatever happened to the key before: the message is tried again although the
// process that had it tried again ended before it had freed the key.
func TestAPositionParksAKeyThatFollowsItsMessage(t *testing.T) {
	key := once.Key{Operation: "c", ID: "m0"}
	type use struct {
		owner [16]byte
		left  once.Status
	}
	parking := name.Digest("park", "c", "m0", "0")
	for what, before := range map[string][]use{
		"new":                       nil,
		"tried":                     {{[16]byte{9}, once.Absent}},
		"tried twice":               {{[16]byte{8}, once.Absent}, {[16]byte{9}, once.Absent}},
		"left by a process":         {{[16]byte{9}, once.Unknown}},
		"freed after it was parked": {{parking, once.Absent}},
		"left while it was parked":  {{parking, once.Unknown}},
	} {
		t.Run(what, func(t *testing.T) {
			onLongBench(t, func(t *testing.T, b *bench) {
				for _, use := range before {
					f := once.Fence{Key: key, Owner: use.owner}
					rec, err := b.store.Claim(t.Context(), once.ClaimRequest{Fence: f, Lease: time.Minute})
					f.Attempt = rec.Attempt
					must(t, errors.Join(err, b.store.Settle(t.Context(), once.Settlement{Fence: f, Status: use.left, KeepKey: time.Hour})))
				}
				var healthy atomic.Bool
				c := logConsumer(b)
				c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
				c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
					if !healthy.Load() {
						return once.Permanent(errors.New("no"))
					}
					return b.effect(ctx, tx, m)
				})
				b.publish("orders", message("m0"))
				start(t, c)
				parked := func() bool {
					rec, err := b.store.Get(t.Context(), key)
					return err == nil && rec.Status == once.Parked && len(b.onTheShelf(store.Parked)) == 1
				}
				await(t, "parked", parked)
				interrupt := func() {
					_, err := inbox.Admin{Store: &refusing{b.store}}.Replay(t.Context(), store.ShelfQuery{Consumer: "c"}, discards)
					if !errors.Is(err, errKilled) {
						t.Error(err)
					}
				}
				interrupt()
				time.Sleep(time.Minute)
				await(t, "parked again, because it failed again", parked)
				if row := b.onTheShelf(store.Parked)[0]; !strings.HasPrefix(row.Reason, "attempt 1: no") {
					t.Errorf("it was not tried: %s", row.Reason)
				}
				interrupt()
				healthy.Store(true)
				await(t, "handled", func() bool { return b.count("m0") == 1 })
			})
		})
	}
}
