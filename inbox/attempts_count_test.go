//go:build go1.25

package inbox

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/memstore"
)

// newCounting returns an environment that counts in a store. around is called
// with each transaction, and its error replaces that of the store.
func newCounting(st *memstore.Store, around func(n int, commit func(lost error) error) error) *env {
	e := &env{Consumer: &Consumer{Policy: once.Policy{Lease: time.Minute}}, store: st, logger: st.Options().Logger, lock: newAttemptLock()}
	n := 0
	e.transact = func(ctx context.Context, rs []once.ClaimRequest, body func([]once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {
		n++
		err = around(n, func(lost error) error {
			recs, err = st.Transact(ctx, rs, func(_ *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
				sets, err := body(recs)
				return sets, errors.Join(err, lost)
			})
			return err
		})
		return recs, err
	}
	return e
}

// uncounted returns an item whose next attempt is counted before it starts.
func uncounted(id string) *item {
	return &item{Delivery: broker.Delivery{Message: &broker.Message{ID: id}}, counting: countBefore,
		countKey: once.Key{Operation: "billing@@attempts", ID: id}}
}

func countIn(t *testing.T, st *memstore.Store, it *item) int64 {
	t.Helper()
	rec, err := st.Get(t.Context(), it.countKey)
	if err != nil {
		t.Fatal(err)
	}
	return countOf(rec).begun
}

// The other records of the transaction may be forgotten when it is repeated, or
// have a claim of another process.
func TestACountWhoseReplyIsLostIsWrittenOnce(t *testing.T) {
	for _, other := range []string{"is forgotten", "was counted elsewhere"} {
		t.Run(other, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New(nil)
				a, b := uncounted("a"), uncounted("b")
				s := newCounting(st, func(n int, commit func(error) error) error {
					err := commit(nil)
					if n > 1 || err != nil {
						return err
					}
					if other == "was counted elsewhere" {
						newCounting(st, func(_ int, commit func(error) error) error { return commit(nil) }).count(t.Context(), b)
					}
					return once.ErrOutcomeUnknown
				})
				_, err := s.updateCounts(t.Context(), []*item{a, b}, func(counts []countNow) error {
					counts[0].begun++
					return nil
				})
				if n := countIn(t, st, a); err != nil || n != 1 {
					t.Errorf("counted %d times, %v", n, err)
				}
			})
		})
	}
}

// The claim of another process is not mistaken for the count.
func TestACountIsWrittenAfterACommitThatDidNotArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		a, rival := uncounted("a"), st.Begin()
		s := newCounting(st, func(n int, commit func(error) error) error {
			switch n {
			case 1:
				if err := commit(errors.New("the connection is lost")); err == nil {
					t.Error("it was committed")
				}
				r := once.ClaimRequest{Fence: once.Fence{Key: a.countKey, Owner: name.Token()}, Lease: time.Minute}
				if _, err := st.ClaimTx(t.Context(), rival, []once.ClaimRequest{r}); err != nil {
					t.Error(err)
				}
				return once.ErrOutcomeUnknown
			case 2:
				defer rival.Rollback()
			}
			return commit(nil)
		})
		s.count(t.Context(), a)
		if n := countIn(t, st, a); a.debt.begun != 0 || n != 1 {
			t.Errorf("the count is %d, and %d is still to be counted", n, a.debt.begun)
		}
	})
}

func TestACountThatEndsItsGoroutineReleasesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		e := newCounting(st, func(int, func(error) error) error {
			runtime.Goexit()
			return nil
		})
		e.BatchSize, e.Retry.Attempts = 1, 4
		h := &txSingle[*memstore.Tx]{&txHandler[*memstore.Tx]{env: e, txStore: st}}
		it := uncounted("a")
		it.key = once.Key{Operation: "billing", ID: "a"}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.handle(t.Context(), []*item{it})
		}()
		<-ended
		if acquired, release := acquiring(t, e.lock.exclude); !acquired() {
			t.Error("the lock is still held")
		} else {
			release()
		}
	})
}
