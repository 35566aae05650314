package once

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/observe"
)

// ClaimFrom returns the claim that the current work runs under. ctx is the
// context that the work received, or one derived from it.
func ClaimFrom(ctx context.Context) (Claim, bool) {
	if in, ok := ctx.Value(claimKey{}).(*workContext); ok {
		return in.claim, true
	}
	return Claim{}, false
}

type claimKey struct{}

// workContext is the context of work: it knows the claim that the work runs
// under. It may outlive the call, so it does not refer to it.
type workContext struct {
	context.Context
	claim Claim
	opts  *Options
}

func (w *workContext) Value(key any) any {
	switch {
	case key == claimKey{}:
		return w
	case scope.IsWork(key):
		return w.claim.Key
	}
	return w.Context.Value(key)
}

// enter returns the context for the work of a claim.
func (c *call) enter(ctx context.Context, rec Record) context.Context {
	c.seen.enter()
	c.event(ctx, observe.Claimed, rec.Attempt, nil)
	return &workContext{ctx, Claim{Key: rec.Key, Attempt: rec.Attempt}, c.opts}
}

// KeyAnswer is what another system answered about an idempotency key that work
// sent to it.
type KeyAnswer string

const (
	// KeyReplayed means that the other system repeated an earlier answer, so an
	// earlier attempt had reached it.
	KeyReplayed KeyAnswer = observe.KeyReplayed

	// KeyConflict means that the other system knows the key for another request.
	// This request had no effect, but an earlier one with other content did: two
	// callers share a key, or one changes its request between attempts.
	KeyConflict KeyAnswer = observe.KeyConflict
)

// NoteKeyAnswer notes, inside the work of [Do], what the other system answered
// about the key. ctx is the context that the work received. The answer is counted
// and, if it is a conflict, logged. It has no effect on the outcome, which the
// work returns. httponce.Transport calls NoteKeyAnswer. Outside of work it does
// nothing.
func NoteKeyAnswer(ctx context.Context, a KeyAnswer, reason error) {
	in, ok := ctx.Value(claimKey{}).(*workContext)
	if !ok {
		return
	}
	if a == KeyConflict {
		in.opts.Logger.WarnContext(ctx, "once: the other system knows the key for another request", "key", in.claim.Key,
			"attempt", in.claim.Attempt, "error", reason)
	}
	in.opts.Tell(ctx, Event{Name: string(a), Key: in.claim.Key, Attempt: in.claim.Attempt, Err: reason})
}

// request returns the request for the key. take is the Unknown attempt to take
// over, or 0.
func (c *call) request(take int64, now time.Time) ClaimRequest {
	return ClaimRequest{Fence: Fence{Key: c.key, Owner: c.token, Attempt: take}, Lease: c.policy.Lease,
		Wait: max(c.joinUntil.Sub(now), 0), Fingerprint: c.fingerprint, Cause: c.cause, ClaimHints: c.hints}
}

// claim repeats a claim whose reply was lost: the store recognises its token. It
// also returns when it began, or one before it whose reply was lost, which may be the
// one that is recognised: not before the store has last said that somebody else has
// the key.
func (c *call) claim(ctx context.Context, take int64) (rec Record, begun time.Time, err error) {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 500 * time.Millisecond}
	for tries := 1; ; tries++ {
		now := time.Now()
		if tries == 1 {
			begun = now
		}
		if !c.unheard.IsZero() {
			begun = c.unheard
		}
		r := c.request(take, now)
		limited := lazyctx.Limit(ctx, now.Add(callTime+r.Wait))
		c.asked = now
		rec, err = c.store.Claim(limited, r)
		limited.Stop()
		// After a lost reply, the claim in flight may be our own, still on its way.
		inFlight := err == nil && rec.Status == Running && rec.Owner == [16]byte{}
		switch {
		case err != nil && c.unheard.IsZero():
			c.unheard = now
		case err == nil && !inFlight && !rec.HeldBy(c.token) && !c.unheard.IsZero():
			c.unheard = now
		}
		if err == nil && (tries == 1 || !inFlight) || isFinal(err) {
			return rec, begun, err
		}
		if tries == claimTries || backoff.Sleep(ctx, pause.Next()) != nil {
			c.abandon(ctx)
			if inFlight {
				return rec, begun, nil
			}
			return rec, begun, &failure{kind: err, key: c.key, hint: "the store could not be reached, nothing was run"}
		}
	}
}

// abandon releases a claim that may have been applied although its replies were
// lost. Its work has never started.
func (c *call) abandon(ctx context.Context) {
	now := time.Now()
	limited := lazyctx.Detach(ctx, now.Add(time.Second))
	defer limited.Stop()
	rec, err := c.store.Claim(limited, c.request(0, now))
	if err == nil && rec.Owner == c.token {
		err = c.store.Settle(limited, c.settlement(rec.fence(), c.ifNotDone, "claimed, and never started"))
	}
	if err != nil {
		c.opts.Logger.WarnContext(ctx, "once: a claim may be left behind until its lease lapses", logs.Spaced(""), "key", c.key, "error", err)
	}
}

// freshen gives work most of its lease, however long the claim took, or a third
// of it if the store is slow. It returns the time from which the lease counts. An
// extension that is confirmed only when the lease before it may have ended is worth
// nothing: somebody may have found that lease over, and asks what happened. With
// the answer they settle this attempt, whose fence the extension has not changed.
func (c *call) freshen(ctx context.Context, fence Fence, begun time.Time) (time.Time, error) {
	if time.Since(begun) < c.policy.Lease/3 {
		return begun, ctx.Err()
	}
	now := time.Now()
	limited := lazyctx.Limit(ctx, now.Add(callTime))
	err := c.store.Extend(limited, fence, c.policy.Lease)
	limited.Stop()
	switch {
	case err != nil:
		return now, err
	case time.Since(begun) >= c.policy.Lease:
		return now, ErrLeaseLost
	}
	return now, ctx.Err()
}

// Extend extends the claim that is held, for package lease.
func (c *call) Extend(ctx context.Context) (final bool, err error) {
	err = c.store.Extend(ctx, Fence{Key: c.key, Owner: c.token, Attempt: c.held}, c.policy.Lease)
	if err == nil {
		c.event(ctx, observe.LeaseExtended, c.held, nil)
	}
	return errors.Is(err, ErrLeaseLost) || isFinal(err), err
}

// Lost reports that the lease of the claim is lost, for package lease.
func (c *call) Lost(ctx context.Context, err error) error {
	c.opts.Logger.WarnContext(ctx, "once: lease lost while working", "key", c.key, "attempt", c.held, "error", err)
	c.event(ctx, observe.LeaseLost, c.held, err)
	return &failure{kind: ErrLeaseLost, key: c.key, attempt: c.held, cause: err}
}

func (c *call) done(fence Fence, out Outcome) Settlement {
	set := c.settlement(fence, Done, "")
	set.Outcome = out
	return set
}

// finish applies a settlement. It goes on when the caller has left, and when the
// process was suspended: a try counts as callTime at most, however long it took.
// The store may accept a settlement long after the lease lapsed.
func (c *call) finish(ctx context.Context, set Settlement) error {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: time.Second}
	for used := time.Duration(0); ; {
		begun := time.Now()
		limited := lazyctx.Detach(ctx, begun.Add(callTime))
		err := c.store.Settle(limited, set)
		limited.Stop()
		if err == nil || errors.Is(err, ErrLeaseLost) || isFinal(err) {
			return err
		}
		if used += min(time.Since(begun), callTime); used >= finishTime {
			return err
		}
		wait := pause.Next()
		_ = backoff.Sleep(context.WithoutCancel(ctx), wait)
		used += wait
	}
}

// record applies the settlement that ends an attempt, and reports it.
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
