//go:build go1.25

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// A record may wait for hours for its turn. Meanwhile a person may have said that it did not happen and is not to be
// run, or it was done and is forgotten: whoever resumes it then does what nobody wants, or does it twice.
func TestWhatHasMovedOnIsNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ran := memstore.New(nil), make(map[string]int)
		var mu sync.Mutex
		charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend,
			Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: time.Hour}}
		pay := func(ctx context.Context, k once.Key) error {
			_, err := once.Do(ctx, s, charge.For(k.ID), func(context.Context, once.Key) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				ran[k.ID]++
				return "", nil
			})
			return err
		}
		ids := []string{"1", "2", "3", "4"}
		crash(t, s, charge, ids...)
		op, stats := reconcile.Of(charge), new(reconcile.Stats)
		op.PerSecond, op.Resume = 0.0001, pay
		ended := make(chan error, 1)
		go func() {
			r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats}
			ended <- r.Sweep(t.Context())
		}()
		synctest.Wait()
		for _, id := range ids {
			if status(t, s, charge, id) == once.Unknown {
				if err := pay(t.Context(), once.Key{ID: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if ran[id] != 1 {
				t.Errorf("%s ran %d times", id, ran[id])
			}
		}
		if stats.Resumed.Load() != 1 || stats.Overtaken.Load() != 3 {
			t.Errorf("%d resumed, %d overtaken", stats.Resumed.Load(), stats.Overtaken.Load())
		}
	})
}

// Whether the other system still honours a key is judged when it is asked, and not when the record was listed.
func TestAKeyThatRunsOutWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup, KeyValidFor: time.Hour}
		crash(t, s, charge, "1", "2")
		op, stats := reconcile.Of(charge), new(reconcile.Stats)
		op.PerSecond = 0.0001
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if stats.Freed.Load() != 1 || stats.Parked.Load() != 1 {
			t.Errorf("%d freed, %d parked", stats.Freed.Load(), stats.Parked.Load())
		}
	})
}

// A place that was waited for is no reason to begin with two at once.
func TestTheRateHoldsAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		begun := time.Now()
		b.ask = func(string) error { // all answers come on the minute
			time.Sleep(time.Minute - time.Since(begun)%time.Minute)
			return nil
		}
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		for i := range 50 {
			crash(t, s, charge, fmt.Sprint(i))
		}
		op := reconcile.Of(charge)
		op.PerSecond, op.AtOnce = 0.5, 3
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, at := range b.times[1:] {
			if gap := at.Sub(b.times[i]); gap < 2*time.Second {
				t.Errorf("question %d came %v after the one before", i+1, gap)
			}
		}
	})
}

// Nothing is begun with after the end, also by those who were waiting for a place.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		ctx, cancel := context.WithCancel(t.Context())
		lookup := func(asked context.Context, _ once.Key) (string, bool, error) {
			if ctx.Err() != nil {
				t.Error("asked after the end")
			}
			<-asked.Done()
			return "", false, asked.Err()
		}
		charge := &once.Operation[string]{Name: "charge", Lookup: lookup}
		for i := range 50 {
			crash(t, s, charge, fmt.Sprint(i))
		}
		r := reconcile.Reconciler{Store: heedless{s}, Operations: []reconcile.Operation{reconcile.Of(charge)}}
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// heedless is a store whose Get does not look at its context.
type heedless struct{ *memstore.Store }

func (s heedless) Get(_ context.Context, k once.Key) (once.Record, error) {
	return s.Store.Get(context.Background(), k)
}

// The slowest rate that can be written is slow, and the longest time between two looks is long.
func TestExtremeSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		crash(t, s, charge, "1", "2", "3", "4")
		op := reconcile.Of(charge)
		op.PerSecond, op.AtOnce = math.SmallestNonzeroFloat64, math.MaxInt
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op},
			Every: math.MaxInt64, AskTime: math.MaxInt64}
		stop := run(t, r)
		time.Sleep(24 * time.Hour)
		stop()
		if len(b.asked) != 1 {
			t.Errorf("%d questions in a day", len(b.asked))
		}
	})
}

func TestOperationsThatCannotWork(t *testing.T) {
	s, b := memstore.New(nil), newBank()
	rate := reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: b.lookup})
	rate.PerSecond = math.NaN()
	for name, op := range map[string]reconcile.Operation{
		"no rate": rate,
		"a slash": reconcile.Of(&once.Operation[string]{Name: "order/charge", Lookup: b.lookup}),
		"both":    reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: b.lookup, OnUnknown: once.Park}),
	} {
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}}
		if err := r.Sweep(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// large is a store with many unknown records of one operation, which are made up as they are listed. From broken on,
// the list cannot be read.
type large struct {
	*memstore.Store
	records, broken int
	reason          string
}

func (s *large) record(i int) once.Record {
	return once.Record{Key: once.Key{Operation: "charge", ID: strconv.Itoa(i)}, Status: once.Unknown, Attempt: 1,
		LeaseLeft: -1, Reason: strings.Clone(s.reason)}
}

func (s *large) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	next := 0
	if q.After.ID != "" {
		next, _ = strconv.Atoi(q.After.ID)
		next++
	}
	for ; next < s.records && len(page.Records) < q.Limit; next++ {
		if s.broken > 0 && next >= s.broken {
			return once.RecordPage{}, once.ErrCorrupt
		}
		page.Records = append(page.Records, s.record(next))
	}
	if next < s.records {
		page.Next = s.record(next - 1).Key
	}
	return page, ctx.Err()
}

func (s *large) Get(_ context.Context, k once.Key) (once.Record, error) {
	i, err := strconv.Atoi(k.ID)
	return s.record(i), err
}

func (s *large) Settle(context.Context, once.Settlement) error { return nil }

// What stands before a damaged record, or what cannot be read, is asked about all the same.
func TestPartOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &large{Store: memstore.New(nil), records: 500, broken: 450}, newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		text := new(strings.Builder)
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(charge)},
			Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := r.Sweep(t.Context()); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("Sweep returned %v", err)
		}
		if b.count("0") != 1 || b.count("399") != 1 {
			t.Errorf("Sweep asked about %d", len(b.asked))
		}
		stop := run(t, r)
		time.Sleep(time.Second)
		stop()
		if b.count("0") != 2 || b.count("399") != 2 {
			t.Errorf("Run asked about %d", len(b.asked))
		}
		if !strings.Contains(text.String(), "damaged") {
			t.Errorf("the log says nothing of it:\n%s", text)
		}
	})
}

// A sweep asks about everything, and has little of it in memory.
func TestASweepOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &large{Store: memstore.New(nil), records: 25_000, reason: strings.Repeat("x", 8<<10)}, newBank()
		var first sync.Once
		var held runtime.MemStats
		b.ask = func(string) error {
			first.Do(func() {
				runtime.GC()
				runtime.ReadMemStats(&held)
			})
			return nil
		}
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(charge)}}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(b.asked) != s.records {
			t.Errorf("asked about %d", len(b.asked))
		}
		if mib := held.HeapAlloc >> 20; mib > 150 { // all are 200
			t.Errorf("%d MiB are held", mib)
		}
	})
}

// More records than are dealt with at once have no answer: those at the end of the list have their turn, too.
func TestTheEndOfALongListHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &large{Store: memstore.New(nil), records: 11_000}, newBank()
		b.ask = func(string) error { return errBoom }
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		op := reconcile.Of(charge)
		op.AtOnce = 100
		stop := run(t, &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}})
		time.Sleep(8 * time.Minute)
		stop()
		if b.count("0") < 2 || b.count("10999") == 0 {
			t.Errorf("the first was asked about %d times, the last %d times", b.count("0"), b.count("10999"))
		}
	})
}

// What Resume says is not believed: it may have done nothing, or called once.Do with another key.
func TestAResumeThatLeavesTheRecordAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, text, stats := memstore.New(nil), new(strings.Builder), new(reconcile.Stats)
		charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend}
		fail := func(context.Context, once.Key) (string, error) { return "", errBoom }
		if _, err := once.Do(t.Context(), s, charge.For("1").In("tenant"), fail); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		op := reconcile.Of(charge)
		op.Resume = func(ctx context.Context, k once.Key) error {
			_, err := once.Do(ctx, s, charge.For(k.ID), func(context.Context, once.Key) (string, error) { return "", nil })
			return err
		}
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats,
			Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if stats.Resumed.Load() != 0 || stats.Unanswered.Load() != 1 || !strings.Contains(text.String(), "another key") {
			t.Errorf("%d resumed, %d without an answer\n%s", stats.Resumed.Load(), stats.Unanswered.Load(), text)
		}
	})
}

// A unit that another process is running is not an error.
func TestResumedBySomebodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := memstore.New(nil), new(reconcile.Stats)
		charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{Wait: once.NoWait}}
		crash(t, s, charge, "1")
		var both sync.WaitGroup
		both.Add(2)
		op := reconcile.Of(charge)
		op.Resume = func(ctx context.Context, k once.Key) error {
			both.Done()
			both.Wait()
			_, err := once.Do(ctx, s, charge.For(k.ID), func(context.Context, once.Key) (string, error) {
				time.Sleep(10 * time.Second)
				return "", nil
			})
			return err
		}
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if err := r.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if stats.Resumed.Load() != 1 || stats.Overtaken.Load() != 1 {
			t.Errorf("%d resumed, %d overtaken, %d without an answer", stats.Resumed.Load(), stats.Overtaken.Load(),
				stats.Unanswered.Load())
		}
	})
}

// Gauges that stand still because the list cannot be read are told from those that have nothing to tell.
func TestLooksAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b, stats := &failing{Store: memstore.New(nil)}, newBank(), new(reconcile.Stats)
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		stop := run(t, &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(charge)}, Stats: stats})
		time.Sleep(10 * time.Minute)
		before := stats.Looks.Load()
		s.down.Store(true)
		time.Sleep(time.Hour)
		stop()
		if after := stats.Looks.Load(); before < 10 || after != before {
			t.Errorf("%d looks in ten minutes, and %d in an hour without a store", before, after-before)
		}
	})
}

// damaged is a store that cannot read one of its records.
type damaged struct{ large }

func (s *damaged) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	page, err := s.large.List(ctx, q)
	if q.After.ID == "" {
		page.Damaged = []error{fmt.Errorf("%w: the record of the lost one", once.ErrCorrupt)}
	}
	return page, err
}

// All records around a damaged one are asked about, and the log names that.
func TestADamagedRecordStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &damaged{large{Store: memstore.New(nil), records: 3}}, newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		text := new(strings.Builder)
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(charge)},
			Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := r.Sweep(t.Context()); err != nil {
			t.Errorf("Sweep returned %v", err)
		}
		if b.count("0") != 1 || b.count("2") != 1 || !strings.Contains(text.String(), "the record of the lost one") {
			t.Errorf("Sweep asked about %d, and said:\n%s", len(b.asked), text)
		}
	})
}
