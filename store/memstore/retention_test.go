package memstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// reopening loses the reply to a commit, and lets a person reopen the key
// before the next call.
type reopening struct {
	*memstore.Store
	lost bool
}

func (s *reopening) Transact(ctx context.Context, rs []once.ClaimRequest, body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	recs, err := s.Store.Transact(ctx, rs, body)
	if s.lost || err != nil {
		return recs, err
	}
	s.lost = true
	rec, err := s.Get(ctx, rs[0].Key)
	return nil, errors.Join(once.ErrOutcomeUnknown, err, store.Reopen(ctx, s.Store, rec, "too soon"))
}

// A call whose commit succeeded finds its key free. It does not run its work
// again, and reports that others may.
func TestReopenedBeforeALostCommitIsFoundOut(t *testing.T) {
	s, runs := &reopening{Store: memstore.New(nil)}, 0
	work := &once.Operation[string]{Name: "charge"}
	call := func() error {
		_, err := once.DoTx(t.Context(), s, work.For("1"), func(context.Context, *memstore.Tx) (string, error) {
			runs++
			return "ok", nil
		})
		return err
	}
	err := call()
	if _, again := once.MayRetry(err); !errors.Is(err, once.ErrLeaseLost) || !again || runs != 1 {
		t.Errorf("it returned %v after %d runs", err, runs)
	}
	if err := call(); err != nil || runs != 2 {
		t.Errorf("the next call returned %v after %d runs", err, runs)
	}
}

func TestReopenRefuses(t *testing.T) {
	s := memstore.New(nil)
	done := once.Record{Key: once.Key{Operation: "charge", ID: "1"}, Status: once.Done, Attempt: 1}
	running := done
	running.Status = once.Running
	for name, c := range map[string]struct {
		store  once.Store
		rec    once.Record
		reason string
		want   error
	}{
		"no reason":       {s, done, "", once.ErrInvalid},
		"not done":        {s, running, "because", once.ErrInvalid},
		"no Reopener":     {struct{ once.Store }{s}, done, "because", errors.ErrUnsupported},
		"never seen here": {s, done, "because", once.ErrLeaseLost},
	} {
		if err := store.Reopen(t.Context(), c.store, c.rec, c.reason); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
