//go:build go1.25

package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// archive is where outcomes go.
type archive struct {
	mu    sync.Mutex
	got   map[string][]once.Record // by key and attempt
	err   error
	calls int
	then  func(ctx context.Context, done []once.Record)
}

func (a *archive) take(ctx context.Context, done []once.Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.err != nil {
		return a.err
	}
	if a.got == nil {
		a.got = make(map[string][]once.Record)
	}
	for _, rec := range done {
		id := fmt.Sprint(rec.Key.ID, " ", rec.Attempt)
		a.got[id] = append(a.got[id], rec)
	}
	if a.then != nil {
		a.then(ctx, done)
	}
	return nil
}

func (a *archive) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// seen is how many outcomes came, and in how many calls.
func (a *archive) seen() (outcomes, calls int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.got), a.calls
}

// times is how often an outcome came.
func (a *archive) times(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.got[id])
}

// archived is a store whose Forget must not be called.
type archived struct {
	*memstore.Store
	forgets atomic.Int64
	fails   atomic.Int64 // how often ForgetRecords fails from now on
}

func (s *archived) Forget(ctx context.Context, limit int) (int, error) {
	s.forgets.Add(1)
	return s.Store.Forget(ctx, limit)
}

func (s *archived) ForgetRecords(ctx context.Context, due []once.Record) (int, error) {
	if len(due) > 0 && s.fails.Add(-1) >= 0 {
		return 0, errBoom
	}
	return s.Store.ForgetRecords(ctx, due)
}

var charge = &once.Operation[string]{Name: "charge", OnUnknown: once.Resend,
	Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: 3 * time.Hour}}

func do(t *testing.T, s once.Store, op *once.Operation[string], id, answer string, work error) {
	t.Helper()
	_, err := once.Do(t.Context(), s, op.For(id), func(context.Context, once.Key) (string, error) { return answer, work })
	if !errors.Is(err, work) {
		t.Fatal(err)
	}
}

func TestWhatIsForgottenIsArchivedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &memstore.Options{Options: once.Options{MaxOutcome: 100}}
		s, a, stats := &archived{Store: memstore.New(o)}, new(archive), new(janitor.Stats)
		a.then = func(ctx context.Context, done []once.Record) {
			for _, rec := range done { // they are all there still
				if due, _, err := s.Forgettable(ctx, 100); err != nil || len(due) == 0 {
					t.Errorf("while it is archived, %v of %d records are past their time, %v", rec.Key.ID, len(due), err)
				}
			}
		}
		for i := range 25 {
			do(t, s, charge, fmt.Sprint(i), fmt.Sprint("charge ", i), nil)
		}
		do(t, s, charge, "rejected", "no funds", once.ErrRejected)
		do(t, s, charge, "omitted", strings.Repeat("long", 100), nil)
		do(t, s, charge, "unknown", "", errBoom)
		do(t, s, charge, "failed", "", once.NotDone(errBoom))
		stop := run(t, &janitor.Janitor{Store: s, Batch: 10, Archive: a.take, Stats: stats})
		time.Sleep(59 * time.Minute)
		if n, _ := a.seen(); n > 0 {
			t.Errorf("%d are archived before their time", n)
		}
		time.Sleep(time.Hour)
		n, calls := a.seen()
		if n != 27 || stats.Keys.Load() != 27 || stats.Behind.Load() {
			t.Errorf("%d are archived, and %d forgotten, behind: %v", n, stats.Keys.Load(), stats.Behind.Load())
		}
		time.Sleep(10 * time.Hour)
		stop()
		if a.calls != calls || stats.Keys.Load() != 2*27+1 { // the keys, and the count of a failed attempt
			t.Errorf("there are %d calls for keys without an outcome; %d are forgotten", a.calls-calls, stats.Keys.Load())
		}
		for id, recs := range a.got {
			if rec := recs[0]; len(recs) != 1 || rec.Attempt != 1 || rec.Owner == [16]byte{} || rec.Created.IsZero() {
				t.Errorf("%q came %d times, as %+v", id, len(recs), rec)
			}
		}
		for id, want := range map[string]once.Outcome{"3 1": {Body: []byte(`"charge 3"`)}, "rejected 1": {Body: []byte(`"no funds"`), Rejected: true},
			"omitted 1": {Omitted: true}} {
			if is := a.got[id][0].Outcome; string(is.Body) != string(want.Body) || is.Rejected != want.Rejected || is.Omitted != want.Omitted {
				t.Errorf("the outcome of %s is archived as %+v", id, is)
			}
		}
		if n := s.forgets.Load(); n > 0 {
			t.Errorf("%d calls of Forget, which asks nobody", n)
		}
		if rec, err := s.Get(t.Context(), charge.For("unknown").Key()); err != nil || rec.Status != once.Unknown {
			t.Errorf("what is unknown is %v, %v", rec.Status, err)
		}
	})
}

// A crash between the archive and the store: it comes again, as it was.
func TestWhatWasArchivedAndNotForgottenComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &archived{Store: memstore.New(nil)}, new(archive)
		for i := range 5 {
			do(t, s, charge, fmt.Sprint(i), "answer", nil)
		}
		time.Sleep(2 * time.Hour)
		s.fails.Store(1)
		j := janitor.Janitor{Store: s, Archive: a.take}
		if err := j.Sweep(t.Context()); !errors.Is(err, errBoom) {
			t.Errorf("Sweep returned %v", err)
		}
		if err := j.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		for id, recs := range a.got {
			if len(recs) != 2 || string(recs[0].Outcome.Body) != `"answer"` || string(recs[1].Outcome.Body) != `"answer"` ||
				recs[0].Owner != recs[1].Owner {
				t.Errorf("%s: %+v", id, recs)
			}
		}
		if due, _, err := s.Forgettable(t.Context(), 10); len(due) > 0 || err != nil || len(a.got) != 5 {
			t.Errorf("%d are left, %v; %d are archived", len(due), err, len(a.got))
		}
	})
}

// An archive that is down keeps what it did not take, and nothing else; people hear of it.
func TestAnArchiveInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, stats, text := newLarge(0, 50, 0), new(archive), new(janitor.Stats), new(strings.Builder)
		do(t, s.Store, charge, "1", "answer", nil)
		a.fail(errBoom)
		stop := run(t, &janitor.Janitor{Store: s, Archive: a.take, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))})
		time.Sleep(10 * time.Hour) // the key is past its time, too
		if _, calls := a.seen(); stats.Keys.Load() != 0 || stats.Shelved.Load() != 50 || !stats.Behind.Load() || calls < 2 {
			t.Errorf("%d keys and %d of the shelf are forgotten, behind: %v, after %d calls", stats.Keys.Load(), stats.Shelved.Load(),
				stats.Behind.Load(), calls)
		}
		a.fail(nil)
		time.Sleep(time.Hour)
		stop()
		if stats.Keys.Load() != 1 || a.times("1 1") != 1 || stats.Behind.Load() {
			t.Errorf("%d keys are forgotten, and the outcome came %d times", stats.Keys.Load(), a.times("1 1"))
		}
		if !strings.Contains(text.String(), "the archive failed") || !strings.Contains(text.String(), "boom") || strings.Contains(text.String(), "the store failed") {
			t.Errorf("the log says %s", text)
		}
	})
}

func TestTwoWhoArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, stats := &archived{Store: memstore.New(nil)}, new(archive), new(janitor.Stats)
		a.then = func(context.Context, []once.Record) { time.Sleep(time.Millisecond) }
		for i := range 200 {
			do(t, s, charge, fmt.Sprint(i), "answer", nil)
		}
		var stops []func()
		for range 2 {
			stops = append(stops, run(t, &janitor.Janitor{Store: s, Archive: a.take, Stats: stats, Batch: 10}))
		}
		time.Sleep(24 * time.Hour)
		for _, stop := range stops {
			stop()
		}
		if len(a.got) != 200 || stats.Keys.Load() != 400 {
			t.Errorf("%d are archived, %d outcomes and keys are forgotten", len(a.got), stats.Keys.Load())
		}
		for id, recs := range a.got {
			if len(recs) > 2 {
				t.Errorf("%s came %d times", id, len(recs))
			}
		}
	})
}

// While an outcome is archived, its key is claimed again: the new record is not
// the one that was archived.
func TestAKeyThatIsClaimedAnewWhileItIsArchived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &archived{Store: memstore.New(nil)}, new(archive)
		brief := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: time.Hour}}
		do(t, s, brief, "done anew", "first", nil)
		do(t, s, brief, "running anew", "first", nil)
		time.Sleep(2 * time.Hour)
		a.then = func(ctx context.Context, _ []once.Record) {
			do(t, s, brief, "done anew", "second", nil)
			r := once.ClaimRequest{Fence: once.Fence{Key: brief.For("running anew").Key(), Owner: [16]byte{1}}, Lease: time.Hour}
			if rec, err := s.Claim(ctx, r); err != nil || rec.Attempt != 1 {
				t.Errorf("%+v, %v", rec, err)
			}
			time.Sleep(90 * time.Minute) // the second answer is past its time before the first is forgotten
			a.then = nil
		}
		j := janitor.Janitor{Store: s, Archive: a.take, BatchTime: 24 * time.Hour}
		for range 2 {
			if err := j.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if recs := a.got["done anew 1"]; len(recs) != 2 || string(recs[0].Outcome.Body) != `"first"` || string(recs[1].Outcome.Body) != `"second"` {
			t.Errorf("archived is %+v", recs)
		}
		if rec, err := s.Get(t.Context(), brief.For("running anew").Key()); err != nil || rec.Status != once.Unknown || rec.Owner != [16]byte{1} {
			t.Errorf("what was claimed anew is %+v, %v", rec, err)
		}
	})
}

// Time in the archive is not the store's.
func TestTheArchiveTakesNoneOfTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &archived{Store: memstore.New(nil)}, new(archive)
		for i := range 100 {
			do(t, s, charge, fmt.Sprint(i), "answer", nil)
		}
		time.Sleep(2 * time.Hour)
		a.then = func(context.Context, []once.Record) { time.Sleep(time.Second) }
		begun := time.Now()
		j := janitor.Janitor{Store: s, Archive: a.take, Batch: 10}
		if err := j.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("ten batches of a second took %v", took)
		}
	})
}

// stuck is a store of which nothing can be forgotten now, because others are changing it all.
type stuck struct{ *memstore.Store }

func (stuck) ForgetRecords(context.Context, []once.Record) (int, error) { return 0, nil }

// What cannot be forgotten is not archived over and over.
func TestWhatOthersAreChangingIsLeftToTheNextLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := stuck{memstore.New(nil)}, new(archive)
		for i := range 25 {
			do(t, s, charge, fmt.Sprint(i), "answer", nil)
		}
		time.Sleep(2 * time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.then = func(context.Context, []once.Record) {
			if a.calls > 3 {
				cancel()
			}
		}
		j := janitor.Janitor{Store: s, Archive: a.take, Batch: 10}
		if err := j.Sweep(ctx); err != nil {
			t.Error(err)
		}
		if _, calls := a.seen(); calls != 1 {
			t.Errorf("it was archived in %d calls", calls)
		}
	})
}

// unsupported is a store that forgets records together.
type unsupported struct{ *memstore.Store }

func (unsupported) Forgettable(context.Context, int) ([]once.Record, bool, error) {
	return nil, false, fmt.Errorf("%w: by the partition", errors.ErrUnsupported)
}

func TestStoresThatCannotArchive(t *testing.T) {
	m := memstore.New(nil)
	for name, s := range map[string]once.Store{"a store": struct{ once.Store }{m}, "partitions": unsupported{m}} {
		a := new(archive)
		j := janitor.Janitor{Store: s, Archive: a.take}
		for verb, call := range map[string]func(context.Context) error{"Run": j.Run, "Sweep": j.Sweep} {
			if err := call(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "Archive") {
				t.Errorf("%s: %s returned %v", name, verb, err)
			}
		}
	}
	var _ store.Archivable = unsupported{}
}
