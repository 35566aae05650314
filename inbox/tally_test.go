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

// counting is a run that counts in a store. A reply of around, which is called with each transaction, replaces that of
// the store.
func counting(st *memstore.Store, around func(n int, commit func(lost error) error) error) *consumerRun {
	s := &consumerRun{Consumer: &Consumer{Policy: once.Policy{Lease: time.Minute}}, store: st, logger: st.Options().Logger, floor: newFloor()}
	n := 0
	s.transact = func(ctx context.Context, rs []once.ClaimRequest, body func([]once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {
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
	return s
}

func uncounted(id string) *item {
	return &item{Delivery: broker.Delivery{Message: &broker.Message{ID: id}}, attempts: once.Key{Operation: "billing@@attempts", ID: id}}
}

func countIn(t *testing.T, st *memstore.Store, it *item) int64 {
	t.Helper()
	rec, err := st.Get(t.Context(), it.attempts)
	if err != nil {
		t.Fatal(err)
	}
	return countOf(rec)
}

// A count whose reply was lost is not counted again, although others at its side are forgotten, or somebody else's.
func TestACountWhoseReplyIsLostIsCountedOnce(t *testing.T) {
	for _, other := range []string{"is forgotten", "was counted elsewhere"} {
		t.Run(other, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New(nil)
				a, b := uncounted("a"), uncounted("b")
				s := counting(st, func(n int, commit func(error) error) error {
					err := commit(nil)
					if n > 1 || err != nil {
						return err
					}
					if other == "was counted elsewhere" {
						counting(st, func(_ int, commit func(error) error) error { return commit(nil) }).count(t.Context(), b)
					}
					return once.ErrOutcomeUnknown
				})
				err := s.tally(t.Context(), []*item{a, b}, func(counts []int64) ([]int64, error) {
					counts[0]++
					return counts, nil
				})
				if n := countIn(t, st, a); err != nil || n != 1 {
					t.Errorf("counted %d times, %v", n, err)
				}
			})
		})
	}
}

// A count whose commit did not arrive is not taken for written because the next transaction meets somebody else's.
func TestACountIsWrittenAfterACommitThatDidNotArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		a, rival := uncounted("a"), st.Begin()
		s := counting(st, func(n int, commit func(error) error) error {
			switch n {
			case 1:
				if err := commit(errors.New("the connection is lost")); err == nil {
					t.Error("it was committed")
				}
				r := once.ClaimRequest{Fence: once.Fence{Key: a.attempts, Owner: name.Token()}, Lease: time.Minute}
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
		if n := countIn(t, st, a); a.debt != 0 || n != 1 {
			t.Errorf("the count is %d, and %d is still to be counted", n, a.debt)
		}
	})
}

// A call of the store that ends its goroutine leaves the floor to others.
func TestACountThatEndsItsGoroutineLeavesTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		s := counting(st, func(int, func(error) error) error {
			runtime.Goexit()
			return nil
		})
		s.BatchSize, s.Retry.Attempts = 1, 4
		s.shape = &txWorker[*memstore.Tx]{consumerRun: s, txStore: st}
		it := uncounted("a")
		it.key = once.Key{Operation: "billing", ID: "a"}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.shape.(*txWorker[*memstore.Tx]).alone(t.Context(), it)
		}()
		<-ended
		if alone, leave := entering(t, s.floor.alone); !alone() {
			t.Error("the floor is taken by one that has ended")
		} else {
			leave()
		}
	})
}
