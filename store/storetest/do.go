package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
)

func doRules() []rule {
	return []rule{
		{"do/once",
			"Of several calls at once, in several processes, one does the work and all return its answer.",
			doOnce},
		{"do/replayed",
			"A later call in any process returns the first answer and does no work.",
			doReplayed},
		{"do/rejected",
			"A rejection is an answer: it is replayed, and the work does not run again.",
			doRejected},
		{"do/not-done",
			"Work that returns NotDone frees its key, and Attempt continues to rise.",
			doNotDone},
		{"do/parked",
			"Work whose outcome is unknown is parked if the operation says so, until a person frees or ends it.",
			doParked},
		{"do/resent",
			"Work that a crash interrupted runs again if the operation resends.",
			doResent},
		{"do/asked",
			"Lookup is asked about work that a crash interrupted before it runs again.",
			doAsked},
		{"do/mismatch",
			"The same key with another input is ErrMismatch: while Running, when Done, and when Expired.",
			doMismatch},
		{"do/heartbeat",
			"An owner that is alive keeps its claim for longer than a lease.",
			doHeartbeat},
		{"do/fenced",
			"An owner that lost its lease cannot record its outcome, and the outcome of its successor stays.",
			doFenced},
		{"do/sealed",
			"A sealed answer comes back unchanged: the store keeps each byte of it, and the fingerprint.",
			doSealed},
		{"do/lost-messages",
			"Lost requests and replies neither repeat the work nor lose its answer.",
			doLostMessages},
	}
}

// op returns an operation of this case, modified by change.
func (b *bench) op(change func(*once.Operation[string])) *once.Operation[string] {
	o := &once.Operation[string]{
		Name:      b.key("").Operation,
		OnUnknown: once.Park,
		Policy:    once.Policy{Lease: long, Wait: b.patience, KeepOutcome: long, KeepKey: 2 * long},
	}
	if change != nil {
		change(o)
	}
	return o
}

func resends(o *once.Operation[string]) { o.OnUnknown = once.Resend }

// work counts how often it ran.
type work struct{ ran atomic.Int64 }

func (w *work) returning(answer string, err error) func(context.Context, once.Key) (string, error) {
	return func(context.Context, once.Key) (string, error) {
		w.ran.Add(1)
		return answer, err
	}
}

func (b *bench) wantRan(w *work, want int64) {
	if n := w.ran.Load(); n != want {
		b.failf("the work ran %d times, want %d", n, want)
	}
}

func (b *bench) wantAnswer(doing, got string, err error, want string) {
	if err != nil || got != want {
		b.failf("%s returned %q and %v, want %q", doing, got, err, want)
	}
}

func doOnce(b *bench) {
	op := b.op(nil)
	var w work
	var replayed atomic.Int64
	b.together(16, func(i int) {
		var how once.Report
		got, err := once.Do(b, b.spread(i), op.For("1").Report(&how), w.returning("first", nil))
		b.wantAnswer("Do", got, err, "first")
		if how.Replayed {
			replayed.Add(1)
		}
	})
	b.wantRan(&w, 1)
	if n := replayed.Load(); n != 15 {
		b.failf("%d of 16 answers were reported as replayed, want 15", n)
	}
}

func doReplayed(b *bench) {
	op := b.op(nil)
	for _, answer := range []string{"", "0", "null", "x\x00\u2028"} {
		var w work
		for i := range b.stores {
			got, err := once.Do(b, b.spread(i), op.For("id "+fmt.Sprintf("%x", answer)), w.returning(answer, nil))
			b.wantAnswer("Do", got, err, answer)
		}
		b.wantRan(&w, 1)
	}
}

func doRejected(b *bench) {
	op := b.op(nil)
	var w work
	for i := range b.stores {
		got, err := once.Do(b, b.spread(i), op.For("1"), w.returning("declined", once.ErrRejected))
		if got != "declined" || !errors.Is(err, once.ErrRejected) {
			b.failf("a rejection was returned as %q, %v", got, err)
		}
	}
	b.wantRan(&w, 1)
}

func doNotDone(b *bench) {
	op := b.op(nil)
	var w work
	for range 3 {
		_, err := once.Do(b, b.store, op.For("1"), w.returning("", once.NotDone(nil)))
		if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked) {
			b.failf("work that returned NotDone ended with %v", err)
		}
	}
	var how once.Report
	got, err := once.Do(b, b.store, op.For("1").Report(&how), w.returning("done", nil))
	b.wantAnswer("Do", got, err, "done")
	b.wantRan(&w, 4)
	if how.Attempt != 4 || how.Replayed {
		b.failf("the fourth attempt is reported as %+v", how)
	}
}

func doParked(b *bench) {
	op := b.op(nil)
	var w work
	for _, id := range []string{"happened", "did not"} {
		_, err := once.Do(b, b.store, op.For(id), w.returning("", errors.New("timeout")))
		b.wantErr("Do with a plain error", err, once.ErrParked)
		_, err = once.Do(b, b.stores[1], op.For(id), w.returning("", nil))
		b.wantErr("Do on a parked key", err, once.ErrParked)
	}
	b.wantRan(&w, 2)

	out, err := op.Outcome("found")
	b.must("Outcome", err)
	b.must("MarkDone", once.MarkDone(b, b.store, b.get(op.For("happened").Key()), out, "seen in the ledger"))
	got, err := once.Do(b, b.stores[1], op.For("happened"), w.returning("again", nil))
	b.wantAnswer("Do after MarkDone", got, err, "found")

	parked := b.get(op.For("did not").Key())
	b.must("MarkNotDone", once.MarkNotDone(b, b.store, parked, "not in the ledger"))
	got, err = once.Do(b, b.stores[1], op.For("did not"), w.returning("again", nil))
	b.wantAnswer("Do after MarkNotDone", got, err, "again")
	b.wantRan(&w, 3)
	b.wantErr("MarkNotDone of a record that has moved on", once.MarkNotDone(b, b.store, parked, "late"), once.ErrLeaseLost)
}

func doResent(b *bench) {
	op := b.op(resends)
	b.lapse(op.For("1").Key(), "crashed")
	var w work
	var how once.Report
	got, err := once.Do(b, b.store, op.For("1").Report(&how), w.returning("second", nil))
	b.wantAnswer("Do after a crash", got, err, "second")
	if b.wantRan(&w, 1); how.Attempt != 2 {
		b.failf("the attempt after a crash is reported as %+v", how)
	}
}

func doAsked(b *bench) {
	happened := true
	op := b.op(func(o *once.Operation[string]) {
		o.OnUnknown = 0
		o.Lookup = func(context.Context, once.Key) (string, bool, error) { return "found", happened, nil }
	})
	var w work
	b.lapse(op.For("happened").Key(), "crashed")
	got, err := once.Do(b, b.store, op.For("happened"), w.returning("again", nil))
	b.wantAnswer("Do of what Lookup finds", got, err, "found")
	b.wantRan(&w, 0)
	happened = false
	b.lapse(op.For("did not").Key(), "crashed")
	got, err = once.Do(b, b.store, op.For("did not"), w.returning("again", nil))
	b.wantAnswer("Do of what Lookup does not find", got, err, "again")
	b.wantRan(&w, 1)
}

func doMismatch(b *bench) {
	op := b.op(func(o *once.Operation[string]) { o.Policy.KeepOutcome = short })
	one, other := op.For("1").Input([]byte("a")), op.For("1").Input([]byte("b"))
	var w work
	_, err := once.Do(b, b.store, one, func(ctx context.Context, k once.Key) (string, error) {
		_, err := once.Do(b, b.stores[1], other, w.returning("", nil))
		b.wantErr("Do with another input while running", err, once.ErrMismatch)
		return "", nil
	})
	b.must("Do", err)
	_, err = once.Do(b, b.stores[1], other, w.returning("", nil))
	b.wantErr("Do with another input when done", err, once.ErrMismatch)
	b.become(one.Key(), once.Expired)
	_, err = once.Do(b, b.stores[1], other, w.returning("", nil))
	b.wantErr("Do with another input when expired", err, once.ErrMismatch)
	_, err = once.Do(b, b.stores[1], one, w.returning("", nil))
	b.wantErr("Do with the same input when expired", err, once.ErrExpired)
	b.wantRan(&w, 0)
}

// A machine that stalls for most of a lease rightly loses it. That does not
// happen three times in a row.
func doHeartbeat(b *bench) {
	const lease, tries = 300 * time.Millisecond, 3
	op := b.op(func(o *once.Operation[string]) { o.Policy.Lease = lease })
	var lost error
	for i := range tries {
		work := op.For(fmt.Sprint(i))
		_, lost = once.Do(b, b.store, work, func(ctx context.Context, k once.Key) (string, error) {
			tick := time.NewTicker(lease / 10)
			defer tick.Stop()
			for b.get(k).Age < 2*lease {
				select {
				case <-ctx.Done():
					return "", context.Cause(ctx)
				case <-tick.C:
				}
			}
			return "", nil
		})
		if lost == nil && b.wantStatus(work.Key(), once.Done).Attempt == 1 {
			return
		}
	}
	b.failf("work that outlives its lease lost it, %d times of %d: %v", tries, tries, lost)
}

// Both are the same operation, except that the lease of the owner that is cut
// off lapses soon.
func doFenced(b *bench) {
	op := b.op(resends)
	brief := b.op(func(o *once.Operation[string]) { o.OnUnknown, o.Policy.Lease = once.Resend, 4*short })
	var working atomic.Bool // until then a slow claim may be extended
	cutOff := Faulty(b.store, func(c Call) Fault {
		if c.Method == "Extend" && working.Load() {
			return Fault{Request: errReset}
		}
		return Fault{}
	})
	var w work
	late := func(ctx context.Context, k once.Key) (string, error) {
		working.Store(true)
		b.become(k, once.Unknown)
		got, err := once.Do(b, b.stores[1], op.For("1"), w.returning("successor", nil))
		b.wantAnswer("Do of the successor", got, err, "successor")
		return "late", nil
	}
	_, err := once.Do(b, cutOff, brief.For("1"), late)
	for errors.Is(err, once.ErrInProgress) && !working.Load() && b.Err() == nil { // the claim took longer than its lease
		_, err = once.Do(b, cutOff, brief.For("1"), late)
	}
	b.wantErr("Do of the one that was cut off", err, once.ErrLeaseLost)
	got, err := once.Do(b, b.stores[2], op.For("1"), w.returning("again", nil))
	b.wantAnswer("Do afterwards", got, err, "successor")
	b.wantRan(&w, 1)
}

var errReset = errors.New("connection reset")

func doLostMessages(b *bench) {
	for name, fault := range map[string]Fault{"request": {Request: errReset}, "reply": {Reply: errReset}} {
		op := b.op(nil)
		var w work
		first := Faulty(b.store, func(c Call) Fault {
			if c.N <= 2 {
				return fault
			}
			return Fault{}
		})
		got, err := once.Do(b, first, op.For(name), w.returning("first", nil))
		b.wantAnswer("Do with a lost "+name, got, err, "first")
		got, err = once.Do(b, b.stores[1], op.For(name), w.returning("again", nil))
		b.wantAnswer("Do after a lost "+name, got, err, "first")
		b.wantRan(&w, 1)
	}
}
