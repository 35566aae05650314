package once

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/scope"
)

// Do guards an effect outside the store's database. It claims the key, runs the
// work, and records its outcome. Every other call with the same key gets that
// outcome for as long as it is kept.
//
// The work should pass key.String() to the other system as its idempotency key.
// The result of the work decides what is recorded:
//
//   - nil or [ErrRejected]: the work is done, with the returned value as its
//     answer.
//   - An error wrapped by [NotDone]: nothing happened. The key is free again,
//     or as unknown as an earlier attempt left it.
//   - Any other error, a panic or a crash: the outcome is unknown. The next
//     call asks Lookup or follows OnUnknown; with [Park] the key is parked.
//
// An answer that exceeds [Options.MaxOutcome], or that the store refuses, is
// not kept. The work is still done, and duplicates get [ErrOutcomeUnavailable].
//
// If the store cannot be reached, Do keeps trying to record the outcome for up
// to a minute, even if the lease lapses or ctx ends meanwhile. If that fails,
// the outcome is unknown, and Do returns the value together with
// [ErrOutcomeUnknown].
//
// The context of the work is cancelled when the lease is lost. The end of ctx
// does not undo a claim: whatever the work then returns is recorded. If Do
// returns an error, value is what the work returned, if it ran.
func Do[T any](ctx context.Context, s Store, w Work[T], run func(context.Context, Key) (T, error)) (value T, err error) {
	ctx, seen := observeCall(ctx, s, "Do", w.key)
	defer seen.end(&err)
	if scope.InsideTx(ctx) {
		return value, &failure{kind: ErrInTx, key: w.key, hint: "do outside work before the transaction, and the last step in it"}
	}
	if scope.RefusesEffects(ctx) {
		return value, &failure{kind: ErrNoEffects, key: w.key, hint: "nothing was run"}
	}
	e := &effect[T]{op: w.op, work: run}
	if err := begin(ctx, &e.call, s, w, seen, run != nil); err != nil {
		return value, err
	}
	if err := w.op.validateForDo(); err != nil {
		return value, err
	}
	rec, mine, err := e.answer(ctx, e)
	w.tell(seen, rec, mine, err)
	e.tellMet(ctx, rec, mine, err)
	switch {
	case err != nil:
		return e.value, hideNotDone(err)
	case !mine:
		return replay(w.op, &e.opts.Sealing, rec, e.id)
	case e.unkept != nil:
		return e.value, &failure{kind: errUnkept, key: w.key, attempt: rec.Attempt, cause: errors.Join(e.unkept, e.rejection)}
	default:
		return e.value, e.rejection
	}
}

// effect is the work of one Do. Its attempts take two commits: claim, work,
// settle.
type effect[T any] struct {
	call
	op   *Operation[T]
	work func(context.Context, Key) (T, error)

	took      int64 // the attempt to take over, also while the claim for that is on its way
	value     T     // what the work returned
	rejection error // the ErrRejected that the work returned
	unkept    error // why the value could not be encoded
}

func (e *effect[T]) attempt(ctx context.Context, take int64) (Record, bool, error) {
	if take > 0 {
		e.took = take
	}
	if e.ifNotDone = Absent; e.took > 0 {
		e.ifNotDone = Unknown // the attempt before may have happened, even if this one does nothing
	}
	for range claimTries {
		rec, begun, err := e.claim(ctx, take)
		if err != nil || !rec.HeldBy(e.token) {
			if e.unheard.IsZero() || rec.Attempt > e.took { // no takeover is on its way, or it comes too late
				e.took = 0
			}
			return rec, false, err
		}
		if e.took > 0 && e.op.isForgotten(rec, e.asked) { // the claim took too long
			set := e.settlement(rec.fence(), Parked, whyForgotten(rec))
			rec.Status, rec.Reason = set.Status, set.Reason
			return rec, false, e.record(ctx, set)
		}
		if rec.Status == Running {
			begun, err = e.freshen(ctx, rec.fence(), begun)
			switch {
			case err == nil:
				rec, err = e.run(ctx, rec, begun)
				return rec, true, err
			case !errors.Is(err, ErrLeaseLost):
				return rec, true, e.giveBack(ctx, rec, err)
			}
		}
		// The claim lapsed before it could be used. Nothing ran under it: claim the key anew.
		err = e.finish(ctx, e.settlement(rec.fence(), e.ifNotDone, "claimed too slowly, and never started"))
		if err != nil && !errors.Is(err, ErrLeaseLost) {
			return rec, false, err
		}
		if e.token, e.unheard = name.Token(), (time.Time{}); take > 0 {
			take = rec.Attempt
		}
	}
	return Record{}, false, &failure{kind: errSlow, key: e.key, hint: "nothing was run: raise Policy.Lease, or look at the store"}
}

// giveBack releases a claim whose work has not started, because of trouble.
func (e *effect[T]) giveBack(ctx context.Context, rec Record, trouble error) error {
	released := e.finish(ctx, e.settlement(rec.fence(), e.ifNotDone, "never started: "+trouble.Error()))
	return &failure{kind: trouble, key: e.key, attempt: rec.Attempt, hint: "nothing was run", cause: released}
}

// run does the work of a claim and records how it ended. The lease counts from
// begun.
func (e *effect[T]) run(ctx context.Context, rec Record, begun time.Time) (Record, error) {
	e.held = rec.Attempt
	alive := lease.Keep(ctx, e.opts.leases, &e.call, e.policy.Lease, begun)
	defer alive.Stop()
	returned := false
	defer func() {
		if !returned { // the panic goes on; its outcome is unknown
			e.record(ctx, e.settlement(rec.fence(), e.ifUnknown, whyEnded))
		}
	}()
	out, err := e.do(e.enter(alive, rec))
	returned = true

	set := e.verdict(rec.fence(), out, err)
	recorded := e.record(ctx, set)
	if errors.Is(recorded, ErrOutcomeRefused) && !set.Outcome.Omitted { // duplicates must learn that it is done, even without its answer
		set.Outcome, _ = e.pack(Outcome{Rejected: out.Rejected, Omitted: true})
		recorded = e.record(ctx, set)
	}
	rec.Status, rec.Outcome = set.Status, set.Outcome
	if recorded != nil {
		rec.Status = Unknown
	}
	switch {
	case rec.Status == Done:
		return rec, nil
	case recorded == nil && errors.Is(err, errNotDone):
		e.seen.fail(err)
		return rec, err
	}
	return rec, e.unsettled(rec, err, recorded)
}

// unsettled returns the error of a run that is not known to have happened or
// not. err is that of the work, recorded that of recording how it ended.
func (e *effect[T]) unsettled(rec Record, err, recorded error) error {
	f := &failure{kind: ErrOutcomeUnknown, key: e.key, attempt: rec.Attempt, cause: err, hint: "the work failed without saying NotDone"}
	switch {
	case errors.Is(recorded, ErrLeaseLost):
		f.kind, f.hint = ErrLeaseLost, "another attempt may have run, and this one may have happened"
	case recorded != nil:
		f.hint, f.cause = "how it ended could not be recorded", errors.Join(err, recorded)
	case rec.Status == Parked:
		f.kind = ErrParked
	}
	return f
}

// do calls the work, and returns its outcome or its error.
func (e *effect[T]) do(ctx context.Context) (out Outcome, err error) {
	e.value, err = e.work(ctx, e.key)
	err = errtree.Tame(err)
	if err != nil && (!errors.Is(err, ErrRejected) || errors.Is(err, errNotDone)) {
		return Outcome{}, err
	}
	e.rejection = err
	if out, e.unkept = e.op.Outcome(e.value); e.unkept != nil {
		out = Outcome{Omitted: true}
	}
	out.Rejected = e.rejection != nil
	return out, nil
}

// verdict returns the settlement that the result of the work calls for.
func (e *effect[T]) verdict(fence Fence, out Outcome, err error) Settlement {
	switch {
	case err == nil:
		packed, ok := e.pack(out)
		if !ok {
			e.opts.Logger.Warn("once: an outcome over MaxOutcome is not kept", logs.Spaced(e.key.Operation), "key", e.key, "bytes", len(out.Body))
		}
		return e.done(fence, packed)
	case errors.Is(err, errNotDone):
		return e.settlement(fence, e.ifNotDone, err.Error())
	default:
		return e.settlement(fence, e.ifUnknown, err.Error())
	}
}
