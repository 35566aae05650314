//go:build go1.25

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

var errBoom = errors.New("boom")

// bank is the other system: it knows what happened, and may be slow or down.
type bank struct {
	mu    sync.Mutex
	paid  map[string]string // by ID
	asked map[string]int
	times []time.Time
	ask   func(id string) error
}

func newBank() *bank { return &bank{paid: make(map[string]string), asked: make(map[string]int)} }

func (b *bank) lookup(ctx context.Context, k once.Key) (string, bool, error) {
	b.mu.Lock()
	b.asked[k.ID]++
	b.times = append(b.times, time.Now())
	ask := b.ask
	value, happened := b.paid[k.ID]
	b.mu.Unlock()
	if ask != nil {
		if err := ask(k.ID); err != nil {
			return "", false, err
		}
	}
	return value, happened, ctx.Err()
}

// count is how often it was asked about a payment.
func (b *bank) count(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[id]
}

// slow makes each answer take a while. It returns how many were asked for at once, at most.
func (b *bank) slow(d time.Duration) *atomic.Int64 {
	var busy, limit atomic.Int64
	b.ask = func(string) error {
		if n := busy.Add(1); n > limit.Load() {
			limit.Store(n)
		}
		time.Sleep(d)
		busy.Add(-1)
		return nil
	}
	return &limit
}

func (b *bank) pay(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[id] = "paid " + id
}

// crash leaves a unit of work unknown.
func crash[T any](t *testing.T, s once.Store, op *once.Operation[T], ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := once.Do(t.Context(), s, op.For(id), func(context.Context, once.Key) (v T, err error) { return v, errBoom })
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
	}
}

// vanish leaves a unit of work with a claim that lapses.
func vanish[T any](t *testing.T, s once.Store, op *once.Operation[T], id string, lease time.Duration) {
	t.Helper()
	fence := once.Fence{Key: once.Key{Operation: op.Name, ID: id}, Owner: [16]byte{1}}
	if _, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: lease}); err != nil {
		t.Fatal(err)
	}
}

func status[T any](t *testing.T, s once.Store, op *once.Operation[T], id string) once.Status {
	t.Helper()
	rec, err := s.Get(t.Context(), once.Key{Operation: op.Name, ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Status
}

func wantStatus[T any](t *testing.T, s once.Store, op *once.Operation[T], id string, want once.Status) {
	t.Helper()
	if got := status(t, s, op, id); got != want {
		t.Errorf("%s %s is %v, want %v", op.Name, id, got, want)
	}
}

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// run runs a reconciler until the function is called.
func run(t *testing.T, r *reconcile.Reconciler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestEachOperationDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		mail := &once.Operation[string]{Name: "mail", OnUnknown: once.Park}
		export := &once.Operation[string]{Name: "export", OnUnknown: once.Resend}
		order := &once.Operation[string]{Name: "order", OnUnknown: once.Resend}
		crash(t, s, charge, "paid", "not paid")
		vanish(t, s, mail, "1", time.Second)
		crash(t, s, export, "1")
		b.pay("paid")
		_, err := once.Do(t.Context(), s, order.For("7"), func(ctx context.Context, k once.Key) (string, error) {
			_, err := once.Do(ctx, s, charge.Under(k), func(context.Context, once.Key) (string, error) { return "", errBoom })
			return "", err
		})
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		stats := new(reconcile.Stats)
		r := &reconcile.Reconciler{Store: s, Logger: logger(t), Stats: stats,
			Operations: []reconcile.Operation{reconcile.Of(charge), reconcile.Of(mail), reconcile.Of(export)}}
		stop := run(t, r)
		time.Sleep(3 * time.Minute)
		stop()
		wantStatus(t, s, charge, "paid", once.Done)
		wantStatus(t, s, charge, "not paid", once.Absent)
		wantStatus(t, s, mail, "1", once.Parked)
		wantStatus(t, s, export, "1", once.Unknown)
		wantStatus(t, s, order, "7", once.Unknown)
		wantStatus(t, s, &once.Operation[string]{Name: "order/charge"}, "7", once.Absent)
		if stats.Done.Load() != 1 || stats.Freed.Load() != 2 || stats.Parked.Load() != 1 || stats.Unanswered.Load() == 0 {
			t.Errorf("counted: %d done, %d freed, %d parked, %d unanswered", stats.Done.Load(), stats.Freed.Load(),
				stats.Parked.Load(), stats.Unanswered.Load())
		}
		if stats.Unknown.Load() != 2 || stats.Orphaned.Load() != 1 || time.Duration(stats.Oldest.Load()) < 20*time.Second {
			t.Errorf("counted: %d unknown, %d of others, the oldest for %v", stats.Unknown.Load(), stats.Orphaned.Load(),
				time.Duration(stats.Oldest.Load()))
		}
		answer, err := once.Do(t.Context(), s, charge.For("paid"), func(context.Context, once.Key) (string, error) {
			t.Error("it ran again")
			return "", nil
		})
		if answer != "paid paid" || err != nil {
			t.Errorf("the answer is %q, %v", answer, err)
		}
	})
}

// A holder that is alive keeps its claim, however often somebody looks; one that is dead loses it when its lease has
// lapsed.
func TestHoldersThatAreAliveAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		vanish(t, s, charge, "dead", time.Minute)
		stop := run(t, &reconcile.Reconciler{Store: s, Every: time.Second, Logger: logger(t),
			Operations: []reconcile.Operation{reconcile.Of(charge)}})
		answer, err := once.Do(t.Context(), s, charge.For("slow"), func(context.Context, once.Key) (string, error) {
			time.Sleep(50 * time.Second)
			wantStatus(t, s, charge, "dead", once.Running)
			time.Sleep(10 * time.Minute)
			return "slow", nil
		})
		stop()
		if answer != "slow" || err != nil {
			t.Errorf("the slow one returned %q, %v", answer, err)
		}
		if b.count("slow") > 0 || b.count("dead") != 1 {
			t.Errorf("asked: %v", b.asked)
		}
		wantStatus(t, s, charge, "dead", once.Absent)
	})
}

func TestManyReconcilers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		b.ask = func(string) error { time.Sleep(10 * time.Millisecond); return nil }
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		const n = 500
		for i := range n {
			crash(t, s, charge, fmt.Sprint(i))
			if i%2 == 0 {
				b.pay(fmt.Sprint(i))
			}
		}
		stats := new(reconcile.Stats)
		op := reconcile.Of(charge)
		op.AtOnce = 16
		var stops []func()
		for range 5 {
			stops = append(stops, run(t, &reconcile.Reconciler{Store: s, Stats: stats, Operations: []reconcile.Operation{op}}))
		}
		time.Sleep(5 * time.Minute)
		for _, stop := range stops {
			stop()
		}
		for i := range n {
			want := once.Absent
			if i%2 == 0 {
				want = once.Done
			}
			wantStatus(t, s, charge, fmt.Sprint(i), want)
		}
		if stats.Done.Load() < n/2 || stats.Freed.Load() < n/2 || stats.Unanswered.Load() > 0 {
			t.Errorf("%d done, %d freed and %d without an answer", stats.Done.Load(), stats.Freed.Load(), stats.Unanswered.Load())
		}
	})
}

// What is to be asked is down: it is asked less and less often, and no other operation waits for it.
func TestSilenceIsAskedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, down, up := memstore.New(nil), newBank(), newBank()
		down.ask = func(string) error { return errBoom }
		charge := &once.Operation[string]{Name: "charge", Lookup: down.lookup}
		ship := &once.Operation[string]{Name: "ship", Lookup: up.lookup}
		crash(t, s, charge, "1")
		stop := run(t, &reconcile.Reconciler{Store: s,
			Operations: []reconcile.Operation{reconcile.Of(charge), reconcile.Of(ship)}})
		time.Sleep(time.Hour)
		first := down.count("1")
		time.Sleep(9 * time.Hour)
		begin, asked := time.Now(), down.count("1")
		crash(t, s, ship, "1")
		for status(t, s, ship, "1") == once.Unknown && time.Since(begin) < time.Hour {
			time.Sleep(time.Second)
		}
		if waited := time.Since(begin); waited > 2*time.Minute {
			t.Errorf("another operation waited for %v", waited)
		}
		stop()
		if first < 8 || first > 50 || asked-first < 6 || asked-first > 60 {
			t.Errorf("asked %d times in the first hour, and %d times in the nine after it", first, asked-first)
		}
	})
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		limit := b.slow(2 * time.Second)
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		for i := range 450 {
			crash(t, s, charge, fmt.Sprint(i))
		}
		op := reconcile.Of(charge)
		op.PerSecond, op.AtOnce = 2, 3
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}}
		begun := time.Now()
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < 300*time.Second || took > 310*time.Second || limit.Load() != 3 { // 3 in 2 seconds
			t.Errorf("450 took %v, %d at once", took, limit.Load())
		}
		for i, at := range b.times[1:] {
			if gap := at.Sub(b.times[i]); gap < 0 {
				t.Errorf("gap of %v", gap)
			}
		}
		if len(b.asked) != 450 {
			t.Errorf("%d were asked about", len(b.asked))
		}
	})
}

// AtOnce holds from one look to the next.
func TestABusyOperationIsNotBegunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		limit := b.slow(20 * time.Second)
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		for i := range 40 {
			crash(t, s, charge, fmt.Sprint(i))
		}
		op := reconcile.Of(charge)
		op.AtOnce = 2
		stop := run(t, &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Every: time.Second})
		time.Sleep(10 * time.Minute)
		stop()
		if limit.Load() != 2 || len(b.asked) != 40 {
			t.Errorf("%d were asked about, %d at once", len(b.asked), limit.Load())
		}
	})
}

func TestLookupsThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		b.ask = func(id string) error {
			switch id {
			case "panics":
				panic("no")
			case "ends":
				runtime.Goexit()
			case "hangs":
				<-t.Context().Done()
			}
			return nil
		}
		charge := &once.Operation[string]{Name: "charge", Lookup: func(ctx context.Context, k once.Key) (string, bool, error) {
			if k.ID == "hangs" {
				<-ctx.Done()
				return "", false, ctx.Err()
			}
			return b.lookup(ctx, k)
		}}
		crash(t, s, charge, "panics", "ends", "hangs", "good")
		stats, text := new(reconcile.Stats), new(strings.Builder)
		op := reconcile.Of(charge)
		op.AtOnce = 1
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats,
			Logger: slog.New(slog.NewTextHandler(text, nil))}
		begun := time.Now()
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s, charge, "good", once.Absent)
		wantStatus(t, s, charge, "panics", once.Unknown)
		if stats.Unanswered.Load() != 3 || stats.Freed.Load() != 1 || time.Since(begun) != 30*time.Second {
			t.Errorf("%d without an answer, %d freed, in %v", stats.Unanswered.Load(), stats.Freed.Load(), time.Since(begun))
		}
		for _, part := range []string{"Lookup panicked, see", "Lookup ended its goroutine, see", "deadline exceeded"} {
			if !strings.Contains(text.String(), part) {
				t.Errorf("the log does not say %q:\n%s", part, text)
			}
		}
	})
}

// A Resume that does not return leaves its record unknown, and others go on.
func TestResumesThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats, text := memstore.New(nil), new(reconcile.Stats), new(strings.Builder)
		mail := &once.Operation[string]{Name: "mail", OnUnknown: once.Resend}
		crash(t, s, mail, "panics", "ends", "good")
		op := reconcile.Of(mail)
		op.AtOnce = 1
		op.Resume = func(ctx context.Context, k once.Key) error {
			switch k.ID {
			case "panics":
				panic("no")
			case "ends":
				runtime.Goexit()
			}
			_, err := once.Do(ctx, s, mail.For(k.ID), func(context.Context, once.Key) (string, error) { return "sent", nil })
			return err
		}
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s, mail, "panics", once.Unknown)
		wantStatus(t, s, mail, "good", once.Done)
		if stats.Unanswered.Load() != 2 || stats.Resumed.Load() != 1 {
			t.Errorf("%d without an answer, %d resumed", stats.Unanswered.Load(), stats.Resumed.Load())
		}
		for _, part := range []string{"Resume panicked, see", "panic=no", "Resume ended its goroutine, see", "TestResumesThatMisbehave"} {
			if !strings.Contains(text.String(), part) {
				t.Errorf("the log does not say %q:\n%s", part, text)
			}
		}
	})
}

// Resume completes abandoned work once, whatever other processes do.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		b.pay("paid")
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		export := &once.Operation[string]{Name: "export", OnUnknown: once.Resend}
		mail := &once.Operation[string]{Name: "mail", OnUnknown: once.Park}
		crash(t, s, charge, "paid", "not paid")
		crash(t, s, export, "1", "no")
		vanish(t, s, mail, "1", time.Second)
		var mu sync.Mutex
		ran := make(map[string]int)
		resume := func(op *once.Operation[string]) reconcile.Operation {
			r := reconcile.Of(op)
			r.Resume = func(ctx context.Context, k once.Key) error {
				_, err := once.Do(ctx, s, op.For(k.ID), func(context.Context, once.Key) (string, error) {
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					ran[op.Name+" "+k.ID]++
					if k.ID == "no" {
						return "no", once.ErrRejected
					}
					return "", nil
				})
				return err
			}
			return r
		}
		stats := new(reconcile.Stats)
		ops := []reconcile.Operation{resume(charge), resume(export), resume(mail)}
		var stops []func()
		for range 3 {
			stops = append(stops, run(t, &reconcile.Reconciler{Store: s, Stats: stats, Operations: ops, Logger: logger(t)}))
		}
		time.Sleep(10 * time.Minute)
		for _, stop := range stops {
			stop()
		}
		want := map[string]int{"charge not paid": 1, "export 1": 1, "export no": 1}
		if fmt.Sprint(ran) != fmt.Sprint(want) {
			t.Errorf("ran: %v, want %v", ran, want)
		}
		wantStatus(t, s, charge, "paid", once.Done)
		wantStatus(t, s, export, "no", once.Done)
		wantStatus(t, s, mail, "1", once.Parked)
		if stats.Unknown.Load() != 0 || stats.Parked.Load() == 0 {
			t.Errorf("%d are unknown, %d parked", stats.Unknown.Load(), stats.Parked.Load())
		}
	})
}

// failing is a store whose List fails.
type failing struct {
	*memstore.Store
	down  atomic.Bool
	asked atomic.Int64
}

func (s *failing) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	s.asked.Add(1)
	if s.down.Load() {
		return once.RecordPage{}, errBoom
	}
	return s.Store.List(ctx, q)
}

func TestAStoreInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := &failing{Store: memstore.New(nil)}, newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		crash(t, s, charge, "1")
		s.down.Store(true)
		r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(charge)}}
		if err := r.Sweep(t.Context()); !errors.Is(err, errBoom) {
			t.Errorf("Sweep returned %v", err)
		}
		stop := run(t, r)
		time.Sleep(time.Hour)
		wantStatus(t, s, charge, "1", once.Unknown)
		if n := s.asked.Load(); n > 30 {
			t.Errorf("it looked %d times in an hour of trouble", n)
		}
		s.down.Store(false)
		time.Sleep(3 * time.Hour) // it has been unknown for an hour
		stop()
		wantStatus(t, s, charge, "1", once.Absent)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Sweep(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Sweep in a context that has ended returned %v", err)
		}
	})
}

type noLister struct{ once.Store }

func TestRefusals(t *testing.T) {
	s := memstore.New(nil)
	op := reconcile.Of(&once.Operation[int]{Name: "charge", OnUnknown: once.Park})
	ops := []reconcile.Operation{op}
	slow, negative := op, op
	slow.PerSecond, negative.AtOnce = -1, -1
	for name, r := range map[string]*reconcile.Reconciler{
		"no store":     {Operations: ops},
		"no list":      {Store: noLister{s}, Operations: ops},
		"nothing":      {Store: s},
		"not of Of":    {Store: s, Operations: []reconcile.Operation{{}}},
		"of nil":       {Store: s, Operations: []reconcile.Operation{reconcile.Of[int](nil)}},
		"twice":        {Store: s, Operations: []reconcile.Operation{op, op}},
		"less than no": {Store: s, Operations: []reconcile.Operation{negative}},
		"backwards":    {Store: s, Operations: []reconcile.Operation{slow}},
		"every":        {Store: s, Operations: ops, Every: -1},
	} {
		for how, err := range map[string]error{"Run": r.Run(t.Context()), "Sweep": r.Sweep(t.Context())} {
			if !errors.Is(err, once.ErrInvalid) {
				t.Errorf("%s: %s returned %v", name, how, err)
			}
		}
	}
}
