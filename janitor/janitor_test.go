//go:build go1.25

package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var errBoom = errors.New("boom")

// large is a store with much to forget, of which each transaction takes some time.
type large struct {
	*memstore.Store
	takes time.Duration
	busy  atomic.Int64 // nanoseconds in all
	calls atomic.Int64

	mu                       sync.Mutex
	keys, shelved, published int
	archived                 int
	keeps                    [3]time.Duration
	down                     map[string]error
}

func (s *large) forget(ctx context.Context, what string, from *int, limit int) (int, error) {
	s.calls.Add(1)
	time.Sleep(s.takes)
	s.busy.Add(int64(s.takes))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[what] != nil {
		return 0, s.down[what]
	}
	n := min(*from, limit)
	*from -= n
	return n, ctx.Err()
}

func (s *large) Forget(ctx context.Context, limit int) (int, error) {
	return s.forget(ctx, "keys", &s.keys, limit)
}

func (s *large) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	s.keep(0, keep)
	return s.forget(ctx, "shelved", &s.shelved, limit)
}

func (s *large) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error) {
	s.keep(1, keep)
	return s.forget(ctx, "published", &s.published, limit)
}

func (s *large) ForgetArchived(ctx context.Context, keep time.Duration, limit int) (int, error) {
	s.keep(2, keep)
	return s.forget(ctx, "archived", &s.archived, limit)
}

func (s *large) keep(kind int, keep time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeps[kind] = keep
}

func (s *large) fail(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = map[string]error{what: err}
}

var (
	_ store.Shelf     = (*large)(nil)
	_ store.Relayable = (*large)(nil)
)

func newLarge(keys, shelved, published int) *large {
	return &large{Store: memstore.New(nil), keys: keys, shelved: shelved, published: published, archived: published}
}

// run runs a Janitor, or a Quota, until the returned function is called.
func run(t *testing.T, j interface{ Run(context.Context) error }) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
}

func TestItForgetsWhatHasHadItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := memstore.New(nil), new(janitor.Stats)
		op := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend,
			Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: 2 * time.Hour}}
		do := func(id string, work error) {
			_, err := once.Do(t.Context(), s, op.For(id), func(context.Context, once.Key) (int, error) { return 1, work })
			if !errors.Is(err, work) {
				t.Fatal(err)
			}
		}
		for i := range 25 {
			do(fmt.Sprint(i), nil)
		}
		do("unknown", errBoom)
		stop := run(t, &janitor.Janitor{Store: s, Batch: 10, Stats: stats})
		time.Sleep(90 * time.Minute)
		if n := stats.Keys.Load(); n != 25 {
			t.Errorf("%d outcomes were forgotten in time, want 25", n)
		}
		time.Sleep(time.Hour)
		stop()
		page, err := s.List(t.Context(), once.RecordQuery{})
		if err != nil || len(page.Records) != 1 || page.Records[0].Key.ID != "unknown" {
			t.Errorf("there still is %+v, %v", page, err)
		}
		if n := stats.Keys.Load(); n != 50 || stats.Behind.Load() || stats.Looks.Load() < 100 {
			t.Errorf("%d were counted in %d looks, behind: %v", n, stats.Looks.Load(), stats.Behind.Load())
		}
	})
}

func TestEachKindIsKeptForItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		j         janitor.Janitor
		keeps     [3]time.Duration
		published int64
	}{
		"by default": {janitor.Janitor{}, [3]time.Duration{90 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour}, 33},
		"as set": {janitor.Janitor{KeepShelved: time.Hour, KeepPublished: time.Minute, KeepArchived: time.Second},
			[3]time.Duration{time.Hour, time.Minute, time.Second}, 33},
		"for ever": {janitor.Janitor{KeepPublished: janitor.Forever, KeepArchived: janitor.Forever},
			[3]time.Duration{90 * 24 * time.Hour, 0, 0}, 0},
	} {
		s, stats := newLarge(15, 24, 33), new(janitor.Stats)
		c.j.Store, c.j.Stats, c.j.Batch = s, stats, 10
		if err := c.j.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if stats.Keys.Load() != 15 || stats.Shelved.Load() != 24 || stats.Published.Load() != c.published || stats.Archived.Load() != c.published ||
			s.keeps != c.keeps {
			t.Errorf("%s: %d, %d and %d are forgotten, kept for %v", name, stats.Keys.Load(), stats.Shelved.Load(),
				stats.Published.Load(), s.keeps)
		}
	}
}

// However much there is, the store has its rest.
func TestShare(t *testing.T) {
	for share, want := range map[float64]float64{0: 0.1, 0.5: 0.5, 0.01: 0.01, 1: 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newLarge(1_000_000, 0, 0)
			s.takes = 30 * time.Millisecond
			begun := time.Now()
			j := janitor.Janitor{Store: s, Share: share}
			if err := j.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			took := float64(s.busy.Load()) / float64(time.Since(begun))
			if took > want+1e-6 || took < want*0.6 {
				t.Errorf("with a share of %v it took %v of the time, want %v", share, took, want)
			}
		})
	}
}

// Much to do of one kind does not hold up the others, and trouble with one neither.
func TestKindsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := newLarge(math.MaxInt, 50, 0), new(janitor.Stats)
		s.takes = time.Millisecond
		stop := run(t, &janitor.Janitor{Store: s, Stats: stats, Batch: 10})
		time.Sleep(time.Second)
		if stats.Shelved.Load() != 50 || !stats.Behind.Load() || stats.Looks.Load() > 0 {
			t.Errorf("%d of the shelf are forgotten, behind: %v", stats.Shelved.Load(), stats.Behind.Load())
		}
		stop()
		s, stats = newLarge(0, 50, 0), new(janitor.Stats)
		s.fail("keys", errBoom)
		j := janitor.Janitor{Store: s, Stats: stats, Batch: 10}
		if err := j.Sweep(t.Context()); !errors.Is(err, errBoom) || stats.Shelved.Load() != 50 || !stats.Behind.Load() {
			t.Errorf("Sweep returned %v, %d of the shelf are forgotten, behind: %v", err, stats.Shelved.Load(),
				stats.Behind.Load())
		}
	})
}

func TestAStoreInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats, text := newLarge(10, 0, 0), new(janitor.Stats), new(strings.Builder)
		s.fail("keys", errBoom)
		stop := run(t, &janitor.Janitor{Store: s, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))})
		time.Sleep(10 * time.Hour)
		if n := s.calls.Load(); n < 4*60 || n > 4*150 || stats.Looks.Load() > 0 { // four times in a look, every ten minutes
			t.Errorf("%d calls in ten hours", n)
		}
		s.fail("none", nil)
		time.Sleep(10 * time.Minute)
		stop()
		if stats.Keys.Load() != 10 || stats.Behind.Load() || stats.Looks.Load() == 0 {
			t.Errorf("%d are forgotten, behind: %v", stats.Keys.Load(), stats.Behind.Load())
		}
		if !strings.Contains(text.String(), "boom") {
			t.Errorf("the log says nothing of it: %s", text)
		}
	})
}

// What a wrapper offers, and its store does not have, is no trouble.
func TestWhatAWrapperCannotForget(t *testing.T) {
	s, stats := newLarge(5, 0, 0), new(janitor.Stats)
	s.fail("shelved", fmt.Errorf("%w: no shelf", errors.ErrUnsupported))
	j := janitor.Janitor{Store: s, Stats: stats}
	if err := j.Sweep(t.Context()); err != nil || stats.Keys.Load() != 5 || stats.Behind.Load() || stats.Looks.Load() != 1 {
		t.Errorf("%v, %d keys, behind: %v", err, stats.Keys.Load(), stats.Behind.Load())
	}
}

// A call that hangs is given up, and the end of the context is the end of the rest.
func TestNothingHoldsItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := &hanging{Store: memstore.New(nil)}, new(janitor.Stats)
		stop := run(t, &janitor.Janitor{Store: s, Stats: stats, BatchTime: time.Second})
		time.Sleep(time.Hour)
		if n := s.calls.Load(); n < 5 {
			t.Errorf("%d calls in an hour", n)
		}
		stop()
		// Where clocks are coarse, a call may take no time.
		none := janitor.Janitor{Store: newLarge(0, 0, 0), Share: math.SmallestNonzeroFloat64}
		if err := none.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		slow := newLarge(10_000, 0, 0)
		slow.takes = time.Minute
		stop = run(t, &janitor.Janitor{Store: slow, Share: math.SmallestNonzeroFloat64})
		time.Sleep(time.Hour)
		begun := time.Now()
		stop()
		if waited := time.Since(begun); waited > time.Minute || slow.calls.Load() != 1 {
			t.Errorf("it ended after %v, and called %d times", waited, slow.calls.Load())
		}
	})
}

type hanging struct {
	once.Store
	calls atomic.Int64
}

func (s *hanging) Forget(ctx context.Context, _ int) (int, error) {
	s.calls.Add(1)
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := newLarge(10_000, 3_000, 0), new(janitor.Stats)
		s.takes = time.Millisecond
		var stops []func()
		for range 5 {
			stops = append(stops, run(t, &janitor.Janitor{Store: s, Stats: stats, Batch: 100}))
		}
		time.Sleep(5 * time.Minute)
		for _, stop := range stops {
			stop()
		}
		if stats.Keys.Load() != 10_000 || stats.Shelved.Load() != 3_000 || stats.Behind.Load() {
			t.Errorf("%d and %d are forgotten, behind: %v", stats.Keys.Load(), stats.Shelved.Load(), stats.Behind.Load())
		}
	})
}

// What a stop cuts off is no trouble with the store: whether the Janitor is behind stays what it was.
func TestAStopIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, behind := range []bool{false, true} {
			s, stats := newLarge(0, 0, 0), new(janitor.Stats)
			s.takes = time.Second
			stats.Behind.Store(behind)
			stop := run(t, &janitor.Janitor{Store: s, Stats: stats})
			synctest.Wait() // in the middle of the first batch
			stop()
			if s.calls.Load() != 1 || stats.Behind.Load() != behind {
				t.Errorf("stopped after %d calls, behind: %v, before: %v", s.calls.Load(), stats.Behind.Load(), behind)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	s := memstore.New(nil)
	for name, j := range map[string]janitor.Janitor{
		"no store":       {},
		"every":          {Store: s, Every: -1},
		"every for ever": {Store: s, Every: math.MaxInt64},
		"batch":          {Store: s, Batch: -1},
		"batch time":     {Store: s, BatchTime: -1},
		"share":          {Store: s, Share: -0.1},
		"all and more":   {Store: s, Share: 1.1},
		"no share":       {Store: s, Share: math.NaN()},
		"shelved":        {Store: s, KeepShelved: -1},
		"published":      {Store: s, KeepPublished: -1},
		"archived":       {Store: s, KeepArchived: -1},
	} {
		if err := j.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Run returned %v", name, err)
		}
		if err := j.Sweep(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Sweep returned %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	j := janitor.Janitor{Store: s}
	if err := j.Sweep(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Sweep in a context that has ended returned %v", err)
	}
	if err := j.Run(ended); err != nil {
		t.Errorf("Run in a context that has ended returned %v", err)
	}
}
