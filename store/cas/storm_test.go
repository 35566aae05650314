//go:build go1.25

package cas_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// stormy is an engine whose requests take time, and of which some are lost, some
// are applied without a reply, and some are applied long after their caller has
// given up on them.
type stormy struct {
	*table
	mu     sync.Mutex
	chance *rand.Rand
	calm   bool
	late   sync.WaitGroup
}

func (s *stormy) n(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chance.IntN(n)
}

var errLost = errors.New("the connection was lost")

// send makes a request, or has it made later.
func (s *stormy) send(request func()) error {
	time.Sleep(time.Duration(s.n(20)) * time.Millisecond)
	s.mu.Lock()
	calm := s.calm
	s.mu.Unlock()
	fault := s.n(12)
	if calm {
		fault = 11
	}
	switch fault {
	case 0:
		return errLost
	case 1:
		request()
		return errLost
	case 2, 3:
		s.late.Go(func() {
			time.Sleep(time.Duration(s.n(3000)) * time.Millisecond)
			request()
		})
		return errLost
	}
	request()
	time.Sleep(time.Duration(s.n(20)) * time.Millisecond)
	return nil
}

func (s *stormy) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	var is cas.Stored
	var err error
	if lost := s.send(func() { is, err = s.table.Load(ctx, k) }); lost != nil {
		return cas.Stored{}, lost
	}
	return is, err
}

func (s *stormy) Put(_ context.Context, row cas.Row, over string) (cas.Stored, error) {
	var is cas.Stored
	var err error
	if lost := s.send(func() { is, err = s.table.Put(context.Background(), row, over) }); lost != nil {
		return cas.Stored{}, lost
	}
	return is, err
}

func (s *stormy) Commit(ctx context.Context, tx *batch) error {
	var err error
	if lost := s.send(func() { err = s.table.Commit(ctx, tx) }); lost != nil {
		return fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, lost)
	}
	return err
}

// Several processes do the same work while requests go wrong. What each of them
// learns is what took place.
func TestWhatCallersLearnInAStorm(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) { storm(t, seed) })
		if t.Failed() {
			return
		}
	}
}

func storm(t *testing.T, seed uint64) {
	s := &stormy{table: newTable(), chance: rand.New(rand.NewPCG(seed, 3))}
	op := &once.Operation[string]{Name: "pay", OnUnknown: once.Park, Speculative: seed%3 == 0}
	op.Policy = once.Policy{Lease: time.Second}
	no := errors.New("out of stock")
	const processes = 3
	type learned struct {
		got string
		err error
	}
	all := make([]learned, processes)
	var callers sync.WaitGroup
	for p := range processes {
		callers.Go(func() {
			shop := &shop{cas.Transactions[*batch]{Store: cas.New(s, s, once.Options{}.Ready()), Engine: s, ClaimFirst: seed%3 == 1}}
			runs := 0
			ctx, end := context.WithTimeout(t.Context(), time.Duration(1+s.n(5))*time.Second)
			defer end()
			all[p].got, all[p].err = once.DoTx(ctx, shop, op.For("1"), func(_ context.Context, tx *batch) (string, error) {
				runs++
				name := fmt.Sprintf("process %d, run %d", p, runs)
				tx.Effects = append(tx.Effects, name)
				time.Sleep(time.Duration(s.n(1500)) * time.Millisecond)
				switch s.n(6) {
				case 0:
					return "", no
				case 1:
					return name, once.ErrRejected
				}
				return name, nil
			})
		})
	}
	callers.Wait()
	s.late.Wait()
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	time.Sleep(2 * time.Second)
	is := open(s.table)
	rec, err := is.Get(t.Context(), op.For("1").Key())
	if err != nil {
		t.Fatal(err)
	}
	kept := strings.Trim(string(rec.Outcome.Body), `"`)
	wanted := 0
	if rec.Status == once.Done && !rec.Outcome.Rejected {
		wanted = 1
	}
	if len(s.Effects) != wanted || wanted == 1 && s.Effects[kept] != 1 {
		t.Errorf("seed %d: the effects are %v, and the record %v, %s", seed, s.Effects, rec.Status, rec.Outcome.Body)
	}
	for p, l := range all {
		own := strings.HasPrefix(kept, fmt.Sprintf("process %d,", p)) && rec.Status == once.Done
		switch {
		case (l.err == nil || errors.Is(l.err, once.ErrRejected)) && (l.got != kept || rec.Outcome.Rejected != (l.err != nil)):
			t.Errorf("seed %d: process %d learned %q, %v, and the record has %q", seed, p, l.got, l.err, kept)
		case l.err != nil && !errors.Is(l.err, once.ErrRejected) && !errors.Is(l.err, once.ErrOutcomeUnknown) && own:
			t.Errorf("seed %d: process %d learned %v, and its work was committed: %q", seed, p, l.err, kept)
		}
	}
	if rec.Status != once.Done && rec.Status != once.Absent {
		t.Errorf("seed %d: the key is %v", seed, rec.Status)
	}
	got, err := once.DoTx(t.Context(), is, op.For("1"), func(context.Context, *batch) (string, error) { return "at last", nil })
	if rec.Status == once.Absent && (got != "at last" || err != nil) {
		t.Errorf("seed %d: afterwards DoTx returned %q, %v", seed, got, err)
	}
}
