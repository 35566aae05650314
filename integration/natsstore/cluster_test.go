package natsstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/natsproc"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/storetest"
)

func TestNATSProcess(t *testing.T) { natsproc.Serve(t) }

func urlsOf(all []*natsproc.Process) (urls string) {
	for i, p := range all {
		if i > 0 {
			urls += ","
		}
		urls += p.URL()
	}
	return urls
}

func TestConformanceOfThreeReplicas(t *testing.T) {
	urls := urlsOf(natsproc.StartCluster(t, natsproc.Settings{}))
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) once.Store {
			return migrated(t, dial(t, urls), &natsstore.Options{Replicas: 3})
		},
		ListsOpen:  true,
		Expires:    true,
		LearnsTime: true,
	})
}

// ledger is another system that does each unit of work as often as it is asked,
// and can be asked whether it has.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *ledger) do(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id]++
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

func (l *ledger) lookUp(_ context.Context, k once.Key) (string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "paid " + k.ID, l.done[k.ID] > 0, nil
}

// payAll has several callers pay each of n bills, and checks that each is paid
// once and that all callers learn of it. disturb is called whenever another share
// of the bills is paid.
func payAll(t *testing.T, stores []*natsstore.Store, n, disturbances int, disturb func()) {
	t.Helper()
	l := &ledger{done: make(map[string]int)}
	pay := &once.Operation[string]{Name: "pay", Lookup: l.lookUp, Policy: once.Policy{Lease: 5 * time.Second}}
	var calling sync.WaitGroup
	for _, store := range stores {
		calling.Go(func() {
			for i := range n {
				id, ctx := fmt.Sprint(i), proof.Soon(t)
				got, err := "", context.Canceled
				for err != nil && ctx.Err() == nil {
					got, err = once.Do(ctx, store, pay.For(id), func(ctx context.Context, _ once.Key) (string, error) {
						if err := ctx.Err(); err != nil {
							return "", once.NotDone(err)
						}
						l.do(id)
						return "paid " + id, nil
					})
				}
				if err != nil || got != "paid "+id {
					t.Errorf("the answer of %s is %q, %v", id, got, err)
				}
			}
		})
	}
	for i := range disturbances {
		proof.Await(t, "another share is paid", func() bool { return l.count() > n*(i+1)/(disturbances+2) })
		disturb()
	}
	calling.Wait()
	for i := range n {
		if n := l.done[fmt.Sprint(i)]; n != 1 {
			t.Errorf("%d was paid %d times", i, n)
		}
		rec, err := stores[0].Get(proof.Soon(t), pay.For(fmt.Sprint(i)).Key())
		if err != nil || rec.Status != once.Done {
			t.Errorf("the record of %d is %v, %v", i, rec.Status, err)
		}
	}
}

// bills returns how many bills a test pays: a fifth, unless it is to soak.
func bills(t *testing.T, soaking int) int {
	if proof.Soaking(t) > 0 {
		return soaking
	}
	return soaking / 5
}

// The kernel has what a killed process has written, so it does not matter
// whether the server syncs. A machine that loses its power is another case.
func TestAKilledServerLosesNothing(t *testing.T) {
	for name, later := range map[string]bool{"synced before each reply": false, "synced later": true} {
		t.Run(name, func(t *testing.T) {
			server := natsproc.Start(t, natsproc.Settings{SyncLater: later})
			var stores []*natsstore.Store
			for range 3 {
				stores = append(stores, migrated(t, dial(t, server.URL()), nil))
			}
			payAll(t, stores, bills(t, 3000), 4, func() { server.Restart(t) })
		})
	}
}

func TestOneOfThreeIsKilled(t *testing.T) {
	all := natsproc.StartCluster(t, natsproc.Settings{})
	var stores []*natsstore.Store
	for range 4 {
		stores = append(stores, migrated(t, dial(t, urlsOf(all)), &natsstore.Options{Replicas: 3}))
	}
	js := dial(t, urlsOf(all))
	kills := 0
	payAll(t, stores, bills(t, 1500), 4, func() {
		leader := natsproc.Leader(t, all, js, "KV_once", "")
		if kills++; kills < 4 {
			leader.Restart(t)
		} else {
			leader.Kill() // and two do the rest
		}
	})
}

// Several processes take over the attempts of each other, while the leader of the
// stream changes. If two had the same attempt, both would be free to work.
func TestNoAttemptHasTwoOwners(t *testing.T) {
	all := natsproc.StartCluster(t, natsproc.Settings{})
	js := dial(t, urlsOf(all))
	var mu sync.Mutex
	owners := make(map[string]map[[16]byte]bool) // of each attempt
	ctx, cancel := context.WithCancel(t.Context())
	var claiming sync.WaitGroup
	for range 8 {
		s := migrated(t, dial(t, urlsOf(all)), &natsstore.Options{Replicas: 3})
		claiming.Go(func() {
			seen := make(map[once.Key]int64)
			for i := 0; ctx.Err() == nil; i++ {
				key := once.Key{Operation: "pay", ID: fmt.Sprint(i % 3)}
				r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte([]byte(rand.Text())), Attempt: seen[key]}, Lease: time.Microsecond}
				rec, err := s.Claim(ctx, r)
				if err != nil {
					continue
				}
				if seen[key] = rec.Attempt; rec.HeldBy(r.Owner) {
					mu.Lock()
					attempt := fmt.Sprintf("%s attempt %d", key.ID, rec.Attempt)
					if owners[attempt] == nil {
						owners[attempt] = make(map[[16]byte]bool)
					}
					owners[attempt][rec.Owner] = true
					mu.Unlock()
				}
			}
		})
	}
	attempts := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(owners)
	}
	for range 4 {
		more := attempts() + 50
		proof.Await(t, "there are claims under this leader", func() bool { return attempts() > more })
		natsproc.Leader(t, all, js, "KV_once", "").Restart(t)
	}
	cancel()
	claiming.Wait()
	for attempt, of := range owners {
		if len(of) > 1 {
			t.Errorf("%s has %d owners", attempt, len(of))
		}
	}
	t.Logf("%d attempts", len(owners))
}
