package once

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/observe"
)

// Claim identifies the claim that work runs under.
type Claim struct {
	Key     Key
	Attempt int64 // rises with each attempt until the key is forgotten
}

type claimKey struct{}

// claimed is a Claim and the call that holds it.
type claimed struct {
	Claim
	call *call
}

// ClaimFrom returns the claim that the current work runs under. ctx is the
// context that the work received, or one derived from it.
func ClaimFrom(ctx context.Context) (Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(claimed)
	return c.Claim, ok
}

// enter returns the context for the work of a claim.
func (c *call) enter(ctx context.Context, rec Record) context.Context {
	c.seen.enter()
	c.event(ctx, observe.Claimed, rec.Attempt, nil)
	ctx = scope.WithWork(ctx, rec.Key)
	return context.WithValue(ctx, claimKey{}, claimed{Claim{Key: rec.Key, Attempt: rec.Attempt}, c})
}

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
	ctx, seen := beginObservation(ctx, s, "Do", w.key)
	defer seen.end(&err)
	if scope.InsideTx(ctx) {
		return value, &failure{kind: ErrInTx, key: w.key, hint: "do outside work before the transaction, and the last step in it"}
	}
	if scope.RefusesEffects(ctx) {
		return value, &failure{kind: ErrNoEffects, key: w.key, hint: "nothing was run"}
	}
	c, err := newCall(ctx, s, w, seen, run != nil, true)
	if err != nil {
		return value, err
	}
	var no, unkept error // a rejection as the work put it; why the value could not be encoded
	rec, mine, err := c.answer(ctx, c.guard(func(ctx context.Context) (Outcome, error) {
		value, err = run(ctx, w.key)
		if err != nil && (!errors.Is(err, ErrRejected) || errors.Is(err, errNotDone)) {
			return Outcome{}, err
		}
		no = err
		out, err := w.op.Outcome(value)
		if err != nil {
			unkept, out = err, Outcome{Omitted: true}
		}
		out.Rejected = no != nil
		return out, nil
	}))
	w.tell(seen, rec, mine, err)
	c.met(ctx, rec, mine, err)
	switch {
	case err != nil:
		return value, hideNotDone(err)
	case !mine:
		return replay(w, &c.opts.Sealing, rec)
	case unkept != nil:
		return value, &failure{kind: errPermanent, key: w.key, attempt: rec.Attempt,
			hint: "it happened and is recorded as done, without its value, which cannot be encoded", cause: errors.Join(unkept, no)}
	default:
		return value, no
	}
}

// guard is an attempt in two commits: claim, work, settle.
func (c *call) guard(work func(context.Context) (Outcome, error)) attempt {
	return func(ctx context.Context, take int64) (Record, bool, error) {
		if c.free = Absent; take > 0 {
			c.free = Unknown // what this attempt does not do says nothing of the one before
		}
		for range claimTries {
			begun := time.Now()
			rec, err := c.claim(ctx, take)
			if err != nil || !c.owns(rec) {
				return rec, false, err
			}
			if rec.Status == Running {
				if begun, err = c.freshen(ctx, rec.fence(), begun); !errors.Is(err, ErrLeaseLost) {
					rec, err = c.run(ctx, rec, begun, err, work)
					return rec, true, err
				}
			}
			// Ours, but it lapsed before we could use it. Nothing has run under it: take it anew.
			err = c.finish(ctx, c.settlement(rec.fence(), c.free, "claimed too slowly, and never started"))
			if err != nil && !errors.Is(err, ErrLeaseLost) {
				return rec, false, err
			}
			if c.token = name.Token(); take > 0 {
				take = rec.Attempt
			}
		}
		return Record{}, false, &failure{kind: errSlow, key: c.key, hint: "nothing was run: raise Policy.Lease, or look at the store"}
	}
}

// freshen lets work begin with most of its lease, however long the claim took. It returns when that was asked for.
func (c *call) freshen(ctx context.Context, fence Fence, begun time.Time) (time.Time, error) {
	if time.Since(begun) < c.policy.Lease/3 {
		return begun, ctx.Err()
	}
	limited := lazyctx.Limit(ctx, callTime)
	defer limited.Stop()
	begun = time.Now()
	return begun, c.store.Extend(limited, fence, c.policy.Lease)
}

// run does the work of a claim and records how it ended. A claim that is in trouble already is given back.
func (c *call) run(ctx context.Context, rec Record, begun time.Time, trouble error, work func(context.Context) (Outcome, error)) (Record, error) {
	if trouble != nil {
		released := c.finish(ctx, c.settlement(rec.fence(), c.free, "never started: "+trouble.Error()))
		return rec, &failure{kind: trouble, key: c.key, attempt: rec.Attempt, hint: "nothing was run", cause: released}
	}
	c.held = rec.fence()
	alive := lease.Keep(ctx, c, c.policy.Lease, begun)
	defer alive.Stop()
	returned := false
	defer func() {
		if !returned { // the panic goes on; what it left behind is unknown
			c.record(ctx, c.settlement(rec.fence(), c.unknown, "the work panicked, or ended its goroutine"))
		}
	}()
	out, err := work(c.enter(alive, rec))
	returned = true

	set := c.verdict(rec.fence(), out, err)
	recorded := c.record(ctx, set)
	if errors.Is(recorded, ErrOutcomeRefused) && !set.Outcome.Omitted { // that it is done must be known all the same
		set.Outcome, _ = c.pack(Outcome{Rejected: out.Rejected, Omitted: true})
		if c.record(ctx, set) == nil {
			recorded = nil
		}
	}
	rec.Status, rec.Outcome = set.Status, set.Outcome
	if recorded != nil {
		rec.Status = Unknown
	}
	f := &failure{key: c.key, attempt: rec.Attempt, cause: err, hint: "the work failed without saying NotDone"}
	switch {
	case errors.Is(recorded, ErrLeaseLost):
		f.kind, f.hint = ErrLeaseLost, "another attempt may have run, and this one may have happened"
	case recorded != nil:
		f.kind, f.hint, f.cause = ErrOutcomeUnknown, "how it ended could not be recorded", errors.Join(err, recorded)
	case rec.Status == Done:
		return rec, err
	case errors.Is(err, errNotDone):
		c.seen.fail(err)
		return rec, err
	case rec.Status == Parked:
		f.kind = ErrParked
	default:
		f.kind = ErrOutcomeUnknown
	}
	return rec, f
}

// Extend and Lost keep the lease of the claim that is held.
func (c *call) Extend(ctx context.Context) (final bool, err error) {
	err = c.store.Extend(ctx, c.held, c.policy.Lease)
	if err == nil {
		c.event(ctx, observe.LeaseExtended, c.held.Attempt, nil)
	}
	return errors.Is(err, ErrLeaseLost) || isFinal(err), err
}

func (c *call) Lost(ctx context.Context, err error) error {
	c.opts.Logger.WarnContext(ctx, "once: lease lost while working", "key", c.key, "attempt", c.held.Attempt, "error", err)
	c.event(ctx, observe.LeaseLost, c.held.Attempt, err)
	return &failure{kind: ErrLeaseLost, key: c.key, attempt: c.held.Attempt, cause: err}
}

func (c *call) record(ctx context.Context, set Settlement) error {
	err := c.finish(ctx, set)
	if err == nil {
		c.event(ctx, eventOf(set.Status, set.Outcome), set.Attempt, nil)
	}
	switch {
	case err != nil:
		c.opts.Logger.ErrorContext(ctx, "once: the end of an attempt could not be recorded", "key", set.Key,
			"attempt", set.Attempt, "status", set.Status.String(), "error", err)
	case set.Status == Parked:
		c.opts.Logger.WarnContext(ctx, "once: parked", "key", set.Key, "attempt", set.Attempt,
			"reason", c.opts.Sealing.OpenReason(Record{Key: set.Key, Reason: set.Reason}))
	}
	return err
}

// verdict is what the return of work says about its key.
func (c *call) verdict(fence Fence, out Outcome, err error) Settlement {
	switch {
	case err == nil:
		packed, ok := c.pack(out)
		if !ok {
			c.opts.Logger.Warn("once: an outcome over MaxOutcome is not kept", logs.Spaced(c.key.Operation), "key", c.key, "bytes", len(out.Body))
		}
		return c.done(fence, packed)
	case errors.Is(err, errNotDone):
		return c.settlement(fence, c.free, err.Error())
	default:
		return c.settlement(fence, c.unknown, err.Error())
	}
}

func (w Work[T]) tell(seen *observation, rec Record, mine bool, err error) {
	r := Report{Replayed: !mine && err == nil && rec.Status == Done, Attempt: rec.Attempt}
	if w.report != nil {
		*w.report = r
	}
	seen.tell(r, rec.Status, rec.Outcome.Rejected, err)
}

// met tells of a call that has found its key taken.
func (c *call) met(ctx context.Context, rec Record, mine bool, err error) {
	switch {
	case mine:
	case err == nil && rec.Status == Done:
		c.event(ctx, observe.Replayed, rec.Attempt, nil)
	case errtree.HasAny(err, ErrInProgress, ErrMismatch, ErrExpired, ErrParked):
		c.event(ctx, observe.Refused, rec.Attempt, err)
	}
}

// replay turns a recorded outcome into the answer of a call. What it cannot read is never run again.
func replay[T any](w Work[T], sealing *Sealing, rec Record) (value T, err error) {
	fail := func(kind, cause error) error {
		return &failure{kind: kind, key: rec.Key, attempt: rec.Attempt, cause: cause}
	}
	out, err := sealing.Open(rec)
	if err != nil {
		return value, err
	}
	var no error
	if out.Rejected {
		no = fail(ErrRejected, nil)
	}
	if out.Omitted {
		return value, fail(ErrOutcomeUnavailable, no)
	}
	if value, err = w.op.codec().Decode(out); err != nil {
		return value, fail(ErrOutcomeUnavailable, errors.Join(err, no))
	}
	return value, no
}
