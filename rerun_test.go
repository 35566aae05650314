//go:build go1.25

package once_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// Conflicts are repeated until the context of the caller ends or, without a
// deadline, for a minute.
func TestDoTxGivesUpOnEndlessConflicts(t *testing.T) {
	for name, c := range map[string]struct{ limit, want time.Duration }{
		"no deadline":       {0, time.Minute},
		"a short deadline":  {5 * time.Second, 5 * time.Second},
		"a remote deadline": {5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs, begun := memstore.New(nil), counter{}, time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.limit > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				_, err := once.DoTx(ctx, s, inTx.For("1"), runs.write("row", "", once.ErrConflict))
				wantErr(t, err, once.ErrConflict)
				if took := time.Since(begun); took < c.want-time.Second || took > c.want+time.Second {
					t.Errorf("gave up after %v, want %v", took, c.want)
				}
			})
		})
	}
}

// Transactions are repeated after a conflict one at a time, unless one takes
// long.
func TestConflictsAreRunAgainOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd = 8
		s := &hooks{Store: memstore.New(nil)}
		var mu sync.Mutex
		tries, running, limit := make(map[string]int), 0, 0
		long := "key 0"
		s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
			id := rs[0].Key.ID
			mu.Lock()
			tries[id]++
			first := tries[id] == 1
			if !first && id != long {
				running++
				limit = max(limit, running)
			}
			mu.Unlock()
			if first {
				return nil, fmt.Errorf("deadlock: %w", once.ErrConflict)
			}
			time.Sleep(time.Second) // fake time
			if id == long {
				time.Sleep(time.Hour)
			}
			mu.Lock()
			defer mu.Unlock()
			if id != long {
				running--
			}
			return transact(ctx, rs, body)
		}
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range crowd {
			wg.Add(1)
			go func() {
				defer wg.Done()
				id := fmt.Sprint("key ", i)
				if _, err := once.DoTx(t.Context(), s, inTx.For(id), (&counter{}).write(id, "", nil)); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); id != long && took > 15*time.Second {
					t.Errorf("%s waited for %v behind one that takes long", id, took)
				}
			}()
		}
		wg.Wait()
		if limit != 1 {
			t.Errorf("%d were run again at once", limit)
		}
	})
}

// A turn ends with its transaction, even if that panics.
func TestTurnsEndWithTheirTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tries := memstore.New(nil), 0
		func() {
			defer func() { _ = recover() }()
			_, _ = once.DoTx(t.Context(), s, inTx.For("1"), func(context.Context, *memstore.Tx) (string, error) {
				if tries++; tries == 1 {
					return "", once.ErrConflict
				}
				panic("boom")
			})
		}()
		begun := time.Now()
		leave, err := s.Options().Turn(t.Context())
		if err != nil || time.Since(begun) > 0 || tries != 2 {
			t.Errorf("%v after %v and %d tries", err, time.Since(begun), tries)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Options().Turn(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("while another has the turn: %v", err)
		}
		leave()
		leave()
	})
}
