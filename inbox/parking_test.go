package inbox_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
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
