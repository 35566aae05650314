package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// TestLanesFollowTheModel checks that each change of the outbox in a real database,
// and of its lanes, is one that the model lanes.pml makes, and each call that a relay
// begins. A broker refuses messages, relays end without a word and take lanes over
// from each other, and a person parks and replays.
func TestLanesFollowTheModel(t *testing.T) {
	seed := proof.Seed(t)
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := e.Migrated(t)
		if e.Name == engine.PGStore {
			followLanes[pgx.Tx](t, d, seed)
			return
		}
		followLanes[*sql.Tx](t, d, seed)
	}, engine.SQLite, engine.Postgres, engine.PGStore)
}

func followLanes[T any](t *testing.T, d *engine.Database, seed uint64) {
	relayable, is := once.As[store.Relayable](d.Store)
	if !is {
		t.Fatal("it has no outbox")
	}
	w := &laneWatch{T: t, Relayable: relayable, model: models.NewLane(), seed: seed, tried: make(map[string]int), got: make(map[string]bool)}
	const n, rounds = 60, 3
	for round := range rounds {
		putAll[T](t, d, w, n/rounds*round, n/rounds)
		ctx, stop := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		for i := range 2 {
			s := &watchedLanes{laneWatch: w, name: fmt.Sprintf("relay%d", 2*round+i), isCut: round < rounds-1 && i == 0}
			r := &outbox.Relay{Store: s, Publisher: s, Batch: 4, Lease: time.Second, StopTime: time.Second,
				Retry: outbox.Retry{Attempts: 2, First: 10 * time.Millisecond, Limit: 10 * time.Millisecond}}
			ended.Go(func() {
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		enough := n / rounds * (round + 1)
		if round < rounds-1 {
			enough -= n / rounds / 2 // the rest is for the next relays
		}
		w.await(ctx, enough)
		stop()
		ended.Wait()
	}
	w.Lock()
	defer w.Unlock()
	if w.wrong != nil {
		t.Error(w.wrong)
	}
	seen := slices.Sorted(maps.Keys(w.model.Seen()))
	t.Logf("%d steps of the model:\n%q", len(seen), seen)
	for _, must := range []string{"owner sends one that is pending", "owner ends one that is pending", "person replays one that is stuck"} {
		if !slices.Contains(seen, must) {
			t.Errorf("no history had this step: %s", must)
		}
	}
}

// putAll puts messages, each in a transaction.
func putAll[T any](t *testing.T, d *engine.Database, w *laneWatch, from, n int) {
	txs, is := once.As[once.TxStore[T]](d.Store)
	puts, has := once.As[store.Outbox[T]](d.Store)
	if !is || !has {
		t.Fatal("it has no outbox")
	}
	out, order := outbox.New(puts, nil), once.Operation[string]{Name: "order"}
	producer := &watchedLanes{laneWatch: w, name: "producer"}
	for i := from; i < from+n; i++ {
		m := &broker.Message{ID: fmt.Sprintf("m%02d", i), Topic: "orders", OrderingKey: fmt.Sprintf("k%d", i%9)}
		_, err := producer.change(t.Context(), []int{store.Lane(m)}, func() (int, error) {
			_, err := once.DoTx(t.Context(), txs, order.For(m.ID), func(ctx context.Context, tx T) (string, error) {
				return "", out.Put(ctx, tx, m)
			})
			return 0, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// laneWatch knows what a database holds of an outbox. It is locked from a call that
// may change that until it was read.
type laneWatch struct {
	*testing.T
	store.Relayable
	seed uint64

	sync.Mutex
	model *models.Lane
	tried map[string]int
	got   map[string]bool // what the broker has
	wrong error
}

func (w *laneWatch) noted(err error) { w.wrong = errors.Join(w.wrong, err) }

// await has a person decide until the broker has so many messages.
func (w *laneWatch) await(ctx context.Context, n int) {
	s := &watchedLanes{laneWatch: w, name: "person"}
	admin, by := outbox.Admin{Store: s}, outbox.Decision{By: "ann", Reason: "to see what happens"}
	parks := 0
	testenv.Await(w.T, fmt.Sprint(n, " messages at the broker"), func() bool {
		var errs [3]error
		if parks < 3 { // and then no more, so that this ends
			for i, state := range []store.OutgoingState{store.Pending, store.Held} {
				tally, err := admin.Park(ctx, store.OutgoingQuery{State: state, Limit: 1}, by)
				parks, errs[i] = parks+tally.Changed, err
			}
		}
		_, errs[2] = admin.Replay(ctx, store.OutgoingQuery{}, by)
		if err := errors.Join(errs[:]...); err != nil {
			w.Error(err)
		}
		w.Lock()
		defer w.Unlock()
		return len(w.got) >= n || w.Failed()
	})
}

// refuses reports whether the broker refuses this attempt at a message. A fifth of
// them are refused until they are stuck.
func (w *laneWatch) refuses(id string) bool {
	w.tried[id]++
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, w.seed, id)
	return (h.Sum64()%5 == 0 || strings.HasSuffix(id, "7")) && w.tried[id] <= 4
}

// watchedLanes is a store and a broker as a process sees them.
type watchedLanes struct {
	*laneWatch
	name  string
	isCut bool // its lanes are not released when it ends
}

// change judges what a call has changed in lanes.
func (s *watchedLanes) change(ctx context.Context, lanes []int, call func() (int, error)) (int, error) {
	s.Lock()
	defer s.Unlock()
	n, err := call()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	var after []store.Outgoing
	for _, state := range []store.OutgoingState{store.Pending, store.Held, store.Stuck} {
		ms, err := s.Relayable.Outgoing(ctx, store.OutgoingQuery{State: state, Lanes: lanes, Limit: 1000, Bodiless: true})
		if err != nil {
			s.noted(err)
			return n, err
		}
		after = append(after, ms...)
	}
	s.noted(s.model.Wrote(s.name, s.name == "person", lanes, after))
	return n, err
}

func lanesOf(ms []store.Outgoing) (lanes []int) {
	for i := range ms {
		if lane := store.Lane(&ms[i].Message); !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// LeaseLanes counts a lease from the beginning of the call, as the database may have.
func (s *watchedLanes) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	s.Lock()
	defer s.Unlock()
	began := time.Now()
	is, err := s.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
	if err == nil {
		now, early := time.Now(), is
		for i := range early.Lanes {
			early.Lanes[i].Left -= now.Sub(began)
		}
		s.noted(s.model.Leased(s.name, relay, lanes, early, now))
	}
	return is, err
}

func (s *watchedLanes) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	s.Lock()
	defer s.Unlock()
	if s.isCut {
		return errors.New("the network is cut")
	}
	err := s.Relayable.ReleaseLanes(ctx, relay, lanes)
	if err == nil {
		s.noted(s.model.Released(s.name, relay, lanes, false, time.Now()))
	}
	return err
}

func (s *watchedLanes) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	return s.change(ctx, lanesOf(ms), func() (int, error) { return s.Relayable.Sent(ctx, relay, ms, then) })
}

func (s *watchedLanes) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	return s.change(ctx, lanesOf(ms), func() (int, error) { return s.Relayable.MoveOutgoing(ctx, relay, ms, to) })
}

func (s *watchedLanes) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	return s.change(ctx, lanesOf(ms), func() (int, error) { return s.Relayable.RemoveOutgoing(ctx, relay, ms) })
}

// Publish is that of the broker.
func (s *watchedLanes) Publish(_ context.Context, ms []*broker.Message) []error {
	s.Lock()
	defer s.Unlock()
	s.noted(s.model.Sends(s.name, ms))
	errs, failed := make([]error, len(ms)), false
	keys := make(map[string]bool) // with one that was refused
	for i, m := range ms {
		if keys[m.OrderingKey] || s.refuses(m.ID) {
			errs[i], failed, keys[m.OrderingKey] = errors.New("the broker refuses it"), true, true
			continue
		}
		s.got[m.ID] = true
		s.model.Published(m.ID)
	}
	if !failed {
		return nil
	}
	return errs
}

func (s *watchedLanes) Close() error { return nil }
