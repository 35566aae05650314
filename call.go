package once

import (
	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/flight"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

const (
	callTime                = 5 * time.Second  // for one call of a store where the caller set no limit
	finishTime              = time.Minute      // for recording what has happened, whatever became of the caller
	findOutTime             = 10 * time.Second // for finding out whether a commit took place, likewise
	shortTime               = 250 * time.Millisecond
	claimTries, commitTries = 4, 3
)

// call is one Do, DoTx or InTx on its way, without its types.
type call struct {
	store     Store
	opts      *Options
	seen      *observation
	key       Key
	policy    Policy
	onUnknown OnUnknown
	ask       interface {
		Ask(context.Context, Store, Record) (Record, error)
	}
	token                    [16]byte
	held                     Fence // while the work of Do runs
	fingerprint              []byte
	cause                    [16]byte
	redelivered, asyncCommit bool
	joinUntil                time.Time
	expected                 Settlement
	foreseen                 *packed // the Outcome of expected
	free, unknown            Status  // what the key becomes when the work says that nothing happened, and when nobody knows
}

// newCall checks everything that can be checked before the store is touched.
func newCall[T any](ctx context.Context, s Store, w Work[T], seen *observation, hasWork, needsChoice bool) (*call, error) {
	switch {
	case s == nil:
		return nil, invalid("the store is nil")
	case s.Options() == nil || s.Options().flights == nil:
		return nil, invalid("the Options of %T were not made by Options.Ready", s)
	case w.op == nil:
		return nil, invalid("a Work is made by Operation.For or Operation.Under")
	case !hasWork:
		return nil, invalid("the function that does the work is nil")
	}
	if err := errors.Join(s.Options().Sealing.Validate(), w.op.validate(needsChoice), w.key.Validate()); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &failure{kind: err, key: w.key, hint: "nothing was tried"}
	}
	c := &call{store: s, opts: s.Options(), seen: seen, key: w.key, onUnknown: w.op.OnUnknown, ask: w.op,
		token: name.Token(), cause: w.cause, redelivered: w.redelivered, asyncCommit: w.op.AsyncCommit, free: Absent, unknown: Unknown}
	if c.onUnknown == Park {
		c.unknown = Parked
	}
	c.policy, _ = w.op.Policy.withDefaults()
	c.joinUntil = time.Now().Add(max(c.policy.Wait, 0))
	c.expected = c.settlement(Fence{}, Done, "")
	if w.hasInput {
		c.fingerprint = checksum.Fingerprint(c.opts.Secret, w.key.UUID(), w.input)
	}
	return c, nil
}

// attempt tries once to claim the key and do the work. It is mine if this call did it; else rec is what stands in the
// way. take names the unknown attempt to take over, or is 0.
type attempt func(ctx context.Context, take int64) (rec Record, mine bool, err error)

// answer returns the record that answers the call: the one it made, or the one it
// met. Duplicates in this process wait for the first of them and hold no
// connection meanwhile. The first tries until the key is done, by this call or by
// another.
func (c *call) answer(ctx context.Context, try attempt) (rec Record, mine bool, err error) {
	if c.policy.Wait != NoWait {
		at := flightKey{key: c.key}
		copy(at.fingerprint[:], c.fingerprint)
		own, met, err := c.join(ctx, at)
		if own == nil {
			return met, false, err
		}
		defer func() { c.opts.flights.Land(at, own, rec, Record.clone) }()
	}
	if c.redelivered {
		if rec, err := c.get(ctx); err == nil && rec.Status == Done {
			return rec, false, c.checkInput(rec)
		}
	}
	pause := &backoff.Backoff{First: 2 * time.Millisecond, Limit: 200 * time.Millisecond}
	var take int64
	for asked := 0; ; {
		rec, mine, err := try(ctx, take)
		if err != nil || mine {
			return rec, mine, err
		}
		if err := c.checkInput(rec); err != nil {
			return rec, false, err
		}
		take = 0
		switch rec.Status {
		case Done:
			return rec, false, nil
		case Running:
			err = c.await(ctx, rec, pause)
		case Unknown:
			if asked++; asked > claimTries {
				return rec, false, c.inProgress(rec) // others keep starting and losing it
			}
			if take, err = c.find(ctx, rec); take > 0 {
				c.inherit(rec)
			}
		default:
			err = c.standing(rec)
		}
		if err != nil {
			return rec, false, err
		}
	}
}

// join waits for duplicates in this process until one of them has the answer, or
// until this call is the first of a flight.
func (c *call) join(ctx context.Context, at flightKey) (own *flight.Flight[Record], met Record, err error) {
	for {
		own, met, landed := c.opts.flights.Enter(ctx, at, c.joinUntil)
		switch {
		case own != nil:
			return own, met, nil
		case !landed && ctx.Err() != nil:
			return nil, met, &failure{kind: ErrInProgress, key: c.key, cause: ctx.Err()}
		case !landed:
			rec, _ := c.get(ctx) // only for a better retry-after
			return nil, rec, c.inProgress(rec)
		}
		if c.event(ctx, observe.Joined, met.Attempt, nil); met.Status == Done {
			return nil, met.clone(), c.checkInput(met)
		}
	}
}

// standing is the error for a record that is not waited for.
func (c *call) standing(rec Record) error {
	f := &failure{kind: ErrCorrupt, key: c.key, attempt: rec.Attempt, hint: "a claim met the status " + rec.Status.String()}
	switch rec.Status {
	case Running:
		return c.inProgress(rec)
	case Absent: // it was ours, and somebody has freed it since
		f.kind, f.hint = ErrLeaseLost, c.opts.Sealing.OpenReason(rec)
	case Expired:
		f.kind, f.hint = ErrExpired, ""
	case Parked:
		f.kind, f.hint = ErrParked, c.opts.Sealing.OpenReason(rec)
	case Unknown:
		f.kind, f.hint = ErrOutcomeUnknown, "it can be asked about outside the transaction only, with Do or DoTx"
	}
	return f
}

// await waits until the record in the way may be out of it.
func (c *call) await(ctx context.Context, rec Record, pause *backoff.Backoff) error {
	for {
		left := time.Until(c.joinUntil)
		if left <= 0 {
			return c.inProgress(rec)
		}
		if err := backoff.Sleep(ctx, min(pause.Next(), left)); err != nil {
			return &failure{kind: ErrInProgress, key: c.key, attempt: rec.Attempt, cause: err}
		}
		now, err := c.get(ctx)
		if err == nil && (now.Status != Running || c.owns(now)) || isFinal(err) {
			return nil // the next attempt tells what it is now
		}
	}
}

// get takes no longer than the caller wants to wait, or little longer.
func (c *call) get(ctx context.Context) (Record, error) {
	limited := lazyctx.Limit(ctx, min(callTime, max(time.Until(c.joinUntil), shortTime)))
	defer limited.Stop()
	return c.store.Get(limited, c.key)
}

// inProgress tells a duplicate to come back when the lease is over. A transaction in flight has none.
func (c *call) inProgress(rec Record) error {
	after := cmp.Or(max(rec.LeaseLeft, 0), time.Second)
	return &failure{kind: ErrInProgress, key: c.key, attempt: rec.Attempt, after: after}
}

// find asks about an unknown attempt. It returns the attempt to take over, 0 for none.
func (c *call) find(ctx context.Context, rec Record) (int64, error) {
	now, err := c.ask.Ask(ctx, c.store, rec)
	if errors.Is(err, ErrLeaseLost) { // it has moved on while it was asked about
		return 0, nil
	}
	if err == nil && now.Status == Unknown && now.Attempt == rec.Attempt && c.onUnknown == Resend {
		return now.Attempt, nil
	}
	return 0, err
}

// inherit completes the call from the attempt that it takes over: it is still
// the same work.
func (c *call) inherit(rec Record) {
	if len(c.fingerprint) == 0 {
		c.fingerprint = rec.Fingerprint
	}
	if c.cause == [16]byte{} {
		c.cause = rec.Cause
	}
}

func (c *call) checkInput(rec Record) error {
	if len(c.fingerprint) == 0 || len(rec.Fingerprint) == 0 || hmac.Equal(c.fingerprint, rec.Fingerprint) {
		return nil
	}
	return &failure{kind: ErrMismatch, key: c.key, attempt: rec.Attempt, hint: "the key was first used for another input"}
}

func (c *call) request(take int64) ClaimRequest {
	return ClaimRequest{Fence: Fence{Key: c.key, Owner: c.token, Attempt: take}, Lease: c.policy.Lease,
		Wait: max(time.Until(c.joinUntil), 0), Fingerprint: c.fingerprint, Cause: c.cause,
		ClaimHints: ClaimHints{Expected: &c.expected, AsyncCommit: c.asyncCommit}}
}

// owns includes a claim that lapsed while the database made it wait: its token is known to nobody else.
func (c *call) owns(r Record) bool {
	return r.Owner == c.token && (r.Status == Running || r.Status == Unknown)
}

// claim repeats a claim whose reply was lost: the store recognises its token.
func (c *call) claim(ctx context.Context, take int64) (Record, error) {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 500 * time.Millisecond}
	for tries := 1; ; tries++ {
		r := c.request(take)
		limited := lazyctx.Limit(ctx, callTime+r.Wait)
		rec, err := c.store.Claim(limited, r)
		limited.Stop()
		// What is in flight after a reply was lost may be our own claim, still on its way.
		inFlight := err == nil && rec.Status == Running && rec.Owner == [16]byte{}
		if err == nil && (tries == 1 || !inFlight) || isFinal(err) {
			return rec, err
		}
		if tries == claimTries || backoff.Sleep(ctx, pause.Next()) != nil {
			c.abandon(ctx)
			if inFlight {
				return rec, nil
			}
			return rec, &failure{kind: err, key: c.key, hint: "the store could not be reached, nothing was run"}
		}
	}
}

// abandon gives back a claim that may have been applied although its replies were lost: its work has never started.
func (c *call) abandon(ctx context.Context) {
	limited := lazyctx.Detach(ctx, time.Second)
	defer limited.Stop()
	rec, err := c.store.Claim(limited, c.request(0))
	if err == nil && rec.Owner == c.token {
		err = c.store.Settle(limited, c.settlement(rec.fence(), c.free, "claimed, and never started"))
	}
	if err != nil {
		c.opts.Logger.WarnContext(ctx, "once: a claim may be left behind until its lease lapses", logs.Spaced(""), "key", c.key, "error", err)
	}
}

func (r Record) fence() Fence { return Fence{Key: r.Key, Owner: r.Owner, Attempt: r.Attempt} }

func (c *call) settlement(fence Fence, status Status, reason string) Settlement {
	return Settlement{Fence: fence, Status: status, Reason: c.opts.Sealing.SealReason(c.key, name.Reason(reason)), KeepOutcome: c.policy.KeepOutcome, KeepKey: c.policy.KeepKey}
}

func (c *call) done(fence Fence, out Outcome) Settlement {
	set := c.settlement(fence, Done, "")
	set.Outcome = out
	return set
}

// finish records what has happened. It is not given up because the caller has left, nor because the process was suspended:
// a try counts for callTime at most, however long it took. The store may accept a settlement long after the lease lapsed.
func (c *call) finish(ctx context.Context, set Settlement) error {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: time.Second}
	for used := time.Duration(0); ; {
		begun := time.Now()
		limited := lazyctx.Detach(ctx, callTime)
		err := c.store.Settle(limited, set)
		limited.Stop()
		if used += min(time.Since(begun), callTime); err == nil || errors.Is(err, ErrLeaseLost) || isFinal(err) || used >= finishTime {
			return err
		}
		wait := pause.Next()
		_ = backoff.Sleep(context.WithoutCancel(ctx), wait)
		used += wait
	}
}

// isFinal reports whether repeating a call of a store is pointless.
func isFinal(err error) bool {
	return errtree.HasAny(err, ErrInvalid, ErrClosed, ErrCorrupt, ErrOutcomeRefused)
}

// pack makes an outcome of this call ready for the store. ok is false if it is too large.
func (c *call) pack(out Outcome) (ready Outcome, ok bool) {
	if c.foreseen.fits(out, c.fingerprint) {
		return c.foreseen.ready, true
	}
	return c.opts.Pack(c.key, c.fingerprint, out)
}

// Pack makes an outcome ready to be stored with a key whose record has this fingerprint: with its checksum, and sealed if
// Sealing says so. It is for those who settle claims without Do and DoTx. ok is false if it is too large: then it is
// Omitted.
func (o *Options) Pack(k Key, fingerprint []byte, out Outcome) (ready Outcome, ok bool) {
	if ok = len(out.Body) <= o.MaxOutcome; !ok {
		out.Body, out.Omitted = nil, true
	}
	if o.Sealing.Seals(SealOutcomes) {
		out = o.Sealing.seal(k, fingerprint, out)
	}
	out.Sum = out.checksum(k)
	return out, ok
}
