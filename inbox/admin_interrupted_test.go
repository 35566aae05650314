package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// park puts a message on the shelf as parked. Its key is parked, too, or as a
// consumer leaves it that has ended meanwhile.
func (b *bench) park(id, key string) {
	b.t.Helper()
	b.shelve("billing", message(id))
	row := b.onTheShelf(store.Waiting)[0]
	row.State, row.Reason = store.Parked, "no"
	if err := b.store.Change(b.t.Context(), row); err != nil {
		b.t.Fatal(err)
	}
	if key == "free" {
		return
	}
	fence := once.Fence{Key: once.Key{Operation: "billing", ID: id}, Owner: [16]byte{1}, Attempt: 1}
	_, err := b.store.Claim(b.t.Context(), once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour})
	if err == nil {
		err = b.store.Settle(b.t.Context(), once.Settlement{Fence: fence, Status: map[string]once.Status{"parked": once.Parked, "unknown": once.Unknown}[key]})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Whenever the process of Discard ends, the same call completes the decision, and
// no other one does: the key is done, and a copy is a duplicate.
func TestADiscardOfParkedMessagesIsCompletedByTheSameCall(t *testing.T) {
	for _, key := range []string{"parked", "unknown", "free"} {
		for kill, ended := 1, false; !ended && kill < 20; kill++ {
			t.Run(fmt.Sprintf("%s/call %d", key, kill), func(t *testing.T) {
				onLongBench(t, func(t *testing.T, b *bench) {
					for _, after := range []bool{false, true} {
						id := fmt.Sprint("m-", after)
						b.park(id, key)
						q := store.ShelfQuery{Consumer: "billing"}
						s := &dying{ill: ill{Store: b.store}, left: kill, after: after}
						_, err := inbox.Admin{Store: s}.Discard(t.Context(), q, discards)
						ended = err == nil
						time.Sleep(time.Minute) // the lease of a claim that was left
						isOpen := func() bool {
							rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: id})
							if err != nil {
								t.Error(err)
							}
							return rec.Status != once.Done
						}
						wasOpen := isOpen() && len(b.onTheShelf(store.Parked)) == 0
						for _, other := range []inbox.Decision{{By: "m", Reason: "a test order"}, {By: "me", Reason: "a test"}, {By: "me", Reason: "a test order", DryRun: true}} {
							got, err := inbox.Admin{Store: b.store}.Discard(t.Context(), store.ShelfQuery{Consumer: "billing", IDs: []string{"other"}}, other)
							if err != nil || got.Changed > 0 {
								t.Errorf("of another message: %+v, %v", got, err)
							}
							if !wasOpen {
								continue
							}
							got, err = inbox.Admin{Store: b.store}.Discard(t.Context(), q, other)
							if want := map[bool]int{true: 1}[other.DryRun]; err != nil || got.Changed != want || !isOpen() {
								t.Errorf("%+v: %+v, %v", other, got, err)
							}
						}
						got, err := inbox.Admin{Store: b.store}.Discard(t.Context(), q, discards)
						if err != nil || wasOpen && got.Changed != 1 {
							t.Errorf("killed at %v: %+v, %v", s.calls, got, err)
						}
						b.wantDiscarded(id)
						if again, err := (inbox.Admin{Store: b.store}).Discard(t.Context(), q, discards); err != nil || again != (inbox.Tally{}) {
							t.Errorf("and once more: %+v, %v", again, err)
						}
						if is := b.onTheShelf(store.Waiting, store.Parked); len(is) > 0 {
							t.Errorf("killed at %v: open: %+v", s.calls, is)
						}
					}
					c := shapes[0].consumer(b, b.effect)
					b.publish("orders", message("m-false"), message("m-true"))
					start(t, c)
					await(t, "the copies are duplicates", func() bool { return c.Stats.Duplicates.Load() == 2 })
				})
			})
			if ended && kill < 4 {
				t.Errorf("it ended after %d calls", kill)
			}
		}
	}
}

// A Discard that was interrupted is not completed if somebody has freed the key
// meanwhile, or a day has passed.
func TestACompletedDiscardOverrulesNobody(t *testing.T) {
	for name, then := range map[string]func(*bench, once.Record) error{
		"somebody frees the key": func(b *bench, rec once.Record) error {
			time.Sleep(time.Minute)
			return once.MarkNotDone(b.t.Context(), b.store, rec, "sent again")
		},
		"a day passes": func(*bench, once.Record) error { time.Sleep(25 * time.Hour); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			onLongBench(t, func(t *testing.T, b *bench) {
				b.park("m-1", "parked")
				q := store.ShelfQuery{Consumer: "billing"}
				key := once.Key{Operation: "billing", ID: "m-1"}
				for kill := 1; len(b.onTheShelf(store.Discarded)) == 0; kill++ {
					_, err := inbox.Admin{Store: &dying{ill: ill{Store: b.store}, left: kill, after: true}}.Discard(t.Context(), q, discards)
					if err == nil || kill > 20 {
						t.Fatalf("it was not interrupted at %d: %v", kill, err)
					}
				}
				was, err := b.store.Get(t.Context(), key)
				if err != nil || was.Status != once.Parked {
					t.Fatalf("the key is %v, %v", was.Status, err)
				}
				was.Key = key
				if err := then(b, was); err != nil {
					t.Fatal(err)
				}
				was, _ = b.store.Get(t.Context(), key)
				got, err := inbox.Admin{Store: b.store}.Discard(t.Context(), q, discards)
				if is, _ := b.store.Get(t.Context(), key); err != nil || got.Changed != 0 || is.Status != was.Status {
					t.Errorf("it changed %d, %v: the key was %v and is %v", got.Changed, err, was.Status, is.Status)
				}
			})
		})
	}
}

// The Limit of a Discard counts what it completes.
func TestTheLimitOfADiscardCountsWhatItCompletes(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		for i := range 3 {
			b.park(fmt.Sprint("m", i), "parked")
		}
		q := store.ShelfQuery{Consumer: "billing", Limit: 1}
		var sum []int
		for _, of := range []inbox.AdminStore{&refusing{Store: b.store}, b.store, b.store} {
			got, err := inbox.Admin{Store: of}.Discard(t.Context(), q, discards)
			if (err == nil) != (of == b.store) {
				t.Error(err)
			}
			sum = append(sum, got.Changed, len(b.onTheShelf(store.Discarded)))
		}
		if !slices.Equal(sum, []int{0, 1, 1, 1, 1, 2}) {
			t.Errorf("changed and discarded: %v", sum)
		}
	})
}

// refusing is a store that settles nothing.
type refusing struct{ *memstore.Store }

func (refusing) Settle(context.Context, once.Settlement) error { return errKilled }

// mortal is the store of a consumer whose process ends while it parks a message,
// before one of its calls or after it. A person decides just before that call, or
// after the process has ended.
type mortal struct {
	*memstore.Store
	left   int
	after  bool
	decide func()

	mu      sync.Mutex
	parking bool
	dead    chan struct{}
	calls   []string
}

func (s *mortal) call(name string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.dead:
		return errKilled
	default:
	}
	if !s.parking {
		return do()
	}
	s.calls = append(s.calls, name)
	if s.left--; s.left > 0 {
		return do()
	}
	defer close(s.dead)
	s.decide()
	if s.after {
		_ = do()
	}
	return errKilled
}

func (s *mortal) Shelve(ctx context.Context, ms []store.Shelved) error {
	if ms[0].State == store.Parked {
		s.mu.Lock()
		s.parking = true
		s.mu.Unlock()
	}
	return s.call("Shelve", func() error { return s.Store.Shelve(ctx, ms) })
}

func (s *mortal) Shelved(ctx context.Context, q store.ShelfQuery) (ms []store.Shelved, err error) {
	if q.Ready || len(q.IDs) == 0 { // not by what parks
		return s.Store.Shelved(ctx, q)
	}
	err = s.call("Shelved", func() (err error) { ms, err = s.Store.Shelved(ctx, q); return err })
	return ms, err
}

func (s *mortal) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	if k.ID != "m0" || k.Operation != "billing" {
		return s.Store.Get(ctx, k)
	}
	err = s.call("Get", func() (err error) { rec, err = s.Store.Get(ctx, k); return err })
	return rec, err
}

func (s *mortal) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.call("Claim", func() (err error) { rec, err = s.Store.Claim(ctx, r); return err })
	return rec, err
}

func (s *mortal) Settle(ctx context.Context, set once.Settlement) error {
	return s.call("Settle", func() error { return s.Store.Settle(ctx, set) })
}

func (s *mortal) Transact(ctx context.Context, rs []once.ClaimRequest, body func(mtx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	select {
	case <-s.dead:
		return nil, errKilled
	default:
		return s.Store.Transact(ctx, rs, body)
	}
}

// A process ends at any of the calls by which it parks a message and its key, and
// a person decides about the message before that or after it. The key follows: a
// message that was discarded is not tried again, and one that is to be tried again
// is handled, even if the process of that person ended before it had freed the key.
// A position, its message on the shelf and the key are one commit, which does not
// end in between.
func TestTheKeyOfAParkedMessageFollowsADecisionAlthoughItsProcessEnds(t *testing.T) {
	for _, handler := range []string{"Tx", "Do", "Checkpoint"} {
		for _, decision := range []string{"replay", "interrupted replay", "discard"} {
			for _, early := range []bool{true, false} {
				for kill, ended := 1, false; !ended && kill < 20; kill++ {
					for _, after := range []bool{false, true} {
						name := fmt.Sprintf("%s/%s/early: %v/call %d/after it: %v", handler, decision, early, kill, after)
						t.Run(name, func(t *testing.T) {
							onLongBench(t, func(t *testing.T, b *bench) {
								ended = !followsDecision(t, b, handler, decision, early, kill, after)
							})
						})
					}
					if ended && kill < 5 && handler != "Checkpoint" {
						t.Errorf("it ended after %d calls", kill)
					}
				}
			}
		}
	}
}

func followsDecision(t *testing.T, b *bench, handler, decision string, early bool, kill int, after bool) (killed bool) {
	key := once.Key{Operation: "billing", ID: "m0"}
	decide := func() {
		admin := inbox.Admin{Store: b.store}
		do := admin.Replay
		switch decision {
		case "interrupted replay":
			do = inbox.Admin{Store: &refusing{b.store}}.Replay
		case "discard":
			do = admin.Discard
		}
		_, err := do(t.Context(), store.ShelfQuery{Consumer: "billing"}, discards)
		if err != nil && !(decision == "interrupted replay" && errors.Is(err, errKilled)) {
			t.Error(err)
		}
	}
	var healthy atomic.Bool
	var done atomic.Int64
	consumer := func(s once.TxStore[mtx]) *inbox.Consumer {
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(2), Stats: new(inbox.Stats)}
		work := func() error {
			if !healthy.Load() {
				return once.NotDone(errors.New("not now"))
			}
			done.Add(1)
			return nil
		}
		if handler == "Checkpoint" {
			c.Source, c.Checkpoint = b.broker.Log("orders", "billing", 1), true
			c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
		}
		if handler != "Do" {
			c.Handler = inbox.Tx(s, func(context.Context, mtx, *broker.Message) error { return work() })
		} else {
			c.Handler = inbox.Do(s, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
				return "", work()
			})
		}
		return c
	}
	s := &mortal{Store: b.store, left: kill, after: after, dead: make(chan struct{}), decide: func() {}}
	if early {
		s.decide = decide
	}
	c := consumer(s)
	stop := start(t, c)
	b.publish("orders", message("m0"))
	await(t, "the end of the process, or of what it does", func() bool {
		select {
		case <-s.dead:
			return true
		default:
			return c.Stats.Parked.Load() == 1
		}
	})
	_ = stop()
	killed = c.Stats.Parked.Load() == 0
	if !early || !killed {
		decide()
	}
	was := b.onTheShelf()
	healthy.Store(true)
	again := consumer(b.store)
	start(t, again)
	// Without a row, there was nothing to decide about.
	undecided := len(was) == 0 || was[0].State == store.Parked
	if undecided {
		return killed
	}
	await(t, "an outcome", func() bool {
		rec, err := b.store.Get(t.Context(), key)
		return err == nil && rec.Status == once.Done && len(b.onTheShelf(store.Waiting)) == 0 &&
			(handler == "Checkpoint" || len(b.broker.Messages("orders")) == 0)
	})
	open := b.onTheShelf(store.Parked)
	if want := map[string]int64{"discard": 0, "replay": 1, "interrupted replay": 1}[decision]; done.Load() != want || len(open) > 0 {
		rec, _ := b.store.Get(t.Context(), key)
		t.Errorf("after %v: handled %d times, want %d; the key is %v; parked: %+v", s.calls, done.Load(), want, rec.Status, open)
	}
	return killed
}
