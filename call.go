package once

import (
	"bytes"
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
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

const (
	callTime    = 5 * time.Second  // limits one call of a store, if the caller set no limit
	finishTime  = time.Minute      // limits recording how work ended, even if the caller has left
	findOutTime = 10 * time.Second // limits finding out whether a commit took place, likewise
	shortTime   = 250 * time.Millisecond
	claimTries  = 4
)

// call is one Do, DoTx or InTx in progress, without its types.
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
	readFirst   bool     // read the record before claiming: the work is probably a duplicate
	id          [16]byte // key.UUID
	token       [16]byte
	unheard     time.Time // since when a claim with this token whose reply was lost may have been applied
	asked       time.Time // when the last claim began
	held        int64     // the attempt, while the work of Do runs
	fingerprint []byte
	ownPrint    [32]byte // what fingerprint points to, if the call has an input
	flight      flight.Flight[Record]
	cause       [16]byte
	joinUntil   time.Time
	hints       ClaimHints
	expected    Settlement // what hints.Expected points to
	foreseen    *packed    // the Outcome of expected
	ifNotDone   Status     // the status of the key if the work says NotDone
	ifUnknown   Status     // the status of the key if nobody knows whether the work happened
}

// observeCall begins the observation of a call.
func observeCall(ctx context.Context, s Store, verb string, k Key) (context.Context, *observation) {
	if s == nil || s.Options() == nil {
		return ctx, nil
	}
	return beginObservation(ctx, s.Options().Observer, s.Options().Logger, verb, k)
}

// begin checks everything that can be checked before the store is called, and
// fills in c.
func begin[T any](ctx context.Context, c *call, s Store, w Work[T], seen *observation, hasWork bool) error {
	switch {
	case s == nil:
		return invalid("the store is nil")
	case s.Options() == nil || s.Options().flights == nil:
		return invalid("the Options of %T were not made by Options.Ready", s)
	case w.op == nil:
		return invalid("the Work was not made by Operation.For or Operation.Under")
	case !hasWork:
		return invalid("the function that does the work is nil")
	}
	if err := errors.Join(s.Options().Sealing.Validate(), w.op.validate(), w.key.Validate()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &failure{kind: err, key: w.key, hint: "nothing was tried"}
	}
	*c = call{store: s, opts: s.Options(), seen: seen, key: w.key, id: w.key.UUID(), onUnknown: w.op.OnUnknown, ask: w.op,
		readFirst: w.redelivered, token: name.Token(), cause: w.cause, ifNotDone: Absent, ifUnknown: Unknown}
	if c.onUnknown == Park {
		c.ifUnknown = Parked
	}
	c.policy, _ = w.op.Policy.withDefaults()
	c.joinUntil = time.Now().Add(max(c.policy.Wait, 0))
	c.expected = c.settlement(Fence{}, Done, "")
	c.hints = ClaimHints{Expected: &c.expected, AsyncCommit: w.op.AsyncCommit}
	if w.hasInput {
		c.ownPrint = checksum.Fingerprint(c.opts.Secret, c.id, w.input)
		c.fingerprint = c.ownPrint[:]
	}
	return nil
}

// attempter makes the attempts of a call.
type attempter interface {
	// attempt tries once to claim the key and do the work. If mine is true, this
	// call did the work; otherwise rec is the record in the way. take is the Unknown
	// attempt to take over, or 0.
	attempt(ctx context.Context, take int64) (rec Record, mine bool, err error)
}

// answer returns the record that answers the call: the one that it made, or the
// one that it met. Duplicates in this process wait for the first of them and hold
// no connection meanwhile. The first tries until the key is done, by this call or
// by another.
func (c *call) answer(ctx context.Context, a attempter) (rec Record, mine bool, err error) {
	if c.policy.Wait != NoWait {
		at := flightKey{c.key, c.ownPrint}
		first, met, err := c.join(ctx, at)
		if !first {
			return met, false, err
		}
		defer func() { c.opts.flights.Land(at, &c.flight, rec, Record.clone) }()
	}
	if c.readFirst {
		if rec, done := c.look(ctx); done {
			return rec, false, c.checkInput(rec)
		}
	}
	pause := &backoff.Backoff{First: 2 * time.Millisecond, Limit: 200 * time.Millisecond}
	var take int64
	for asked := 0; ; {
		rec, mine, err := a.attempt(ctx, take)
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
			err = c.refusal(rec)
		}
		if err != nil {
			return rec, false, err
		}
	}
}

// join waits for duplicates in this process until one of them has the answer, or
// until this call is the first of a flight.
func (c *call) join(ctx context.Context, at flightKey) (first bool, met Record, err error) {
	for {
		first, met, landed := c.opts.flights.Enter(ctx, at, &c.flight, c.joinUntil)
		switch {
		case first:
			return true, met, nil
		case !landed && ctx.Err() != nil:
			return false, met, &failure{kind: ErrInProgress, key: c.key, cause: ctx.Err()}
		case !landed:
			rec, _ := c.get(ctx) // only for a better retry-after
			return false, rec, c.inProgress(rec)
		}
		if c.event(ctx, observe.Joined, met.Attempt, nil); met.Status == Done {
			return false, met.clone(), c.checkInput(met)
		}
	}
}

// refusal returns the error of a call that met a record which it neither waits
// for nor takes over.
func (c *call) refusal(rec Record) error {
	f := &failure{kind: ErrCorrupt, key: c.key, attempt: rec.Attempt, hint: "a claim met the status " + rec.Status.String()}
	switch rec.Status {
	case Running:
		return c.inProgress(rec)
	case Absent: // this call had claimed it, and somebody has freed it since
		f.kind, f.hint = ErrLeaseLost, c.opts.Sealing.OpenReason(rec)
	case Expired:
		f.kind, f.hint = ErrExpired, ""
	case Parked:
		f.kind, f.hint = ErrParked, c.opts.Sealing.OpenReason(rec)
	case Unknown:
		f.kind, f.hint = ErrOutcomeUnknown, "only a call outside the transaction can ask about it"
	}
	return f
}

// await waits until the record in the way may have changed.
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
		if err == nil && (now.Status != Running || now.HeldBy(c.token)) || isFinal(err) {
			return nil // the next attempt finds out what it is now
		}
	}
}

// get reads the record. It takes no longer than the caller wants to wait, or a
// little longer.
func (c *call) get(ctx context.Context) (Record, error) {
	now := time.Now()
	limited := lazyctx.Limit(ctx, now.Add(min(callTime, max(c.joinUntil.Sub(now), shortTime))))
	defer limited.Stop()
	return c.store.Get(limited, c.key)
}

// look returns the record if it is Done, without claiming.
func (c *call) look(ctx context.Context) (rec Record, done bool) {
	if r, ok := As[Replayer](c.store); ok {
		if rec, done = r.Replay(ctx, c.key); done {
			return rec, true
		}
	}
	rec, err := c.get(ctx)
	return rec, err == nil && rec.Status == Done
}

// inProgress tells a duplicate to retry when the lease has ended. A transaction
// in flight has no lease.
func (c *call) inProgress(rec Record) error {
	after := cmp.Or(max(rec.LeaseLeft, 0), time.Second)
	return &failure{kind: ErrInProgress, key: c.key, attempt: rec.Attempt, after: after}
}

// find asks about an unknown attempt. It returns the attempt to take over, or 0.
func (c *call) find(ctx context.Context, rec Record) (int64, error) {
	now, err := c.ask.Ask(ctx, c.store, rec)
	if errors.Is(err, ErrLeaseLost) { // the record changed while it was asked about
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

// settlement returns a settlement under the policy of the call.
func (c *call) settlement(fence Fence, status Status, reason string) Settlement {
	reason = name.Reason(reason)
	if status == Unknown && reason == "" {
		reason = "failed without a word" // a record without a reason has lapsed
	}
	return Settlement{Fence: fence, Status: status, Reason: c.opts.Sealing.SealReason(c.key, reason),
		KeepOutcome: c.policy.KeepOutcome, KeepKey: c.policy.KeepKey}
}

// isFinal reports whether repeating a call of a store is pointless.
func isFinal(err error) bool {
	return errtree.HasAny(err, ErrInvalid, ErrClosed, ErrCorrupt, ErrOutcomeRefused)
}

// pack makes an outcome of this call ready for the store. If it is too large, it
// is Omitted, and ok is false.
func (c *call) pack(out Outcome) (ready Outcome, ok bool) {
	if c.foreseen.fits(out, c.fingerprint) {
		return c.foreseen.ready, true
	}
	return c.opts.pack(c.key, c.id, c.fingerprint, out)
}

// packed is an outcome that was made ready for the store, and what it was made
// of. Sealing an outcome twice gives two different texts, and a store that has
// already written one compares them.
type packed struct {
	plain, ready Outcome
	fingerprint  []byte
}

func (p *packed) fits(out Outcome, fingerprint []byte) bool {
	return p != nil && out.ContentType == p.plain.ContentType && out.Rejected == p.plain.Rejected &&
		out.Omitted == p.plain.Omitted && bytes.Equal(out.Body, p.plain.Body) && bytes.Equal(fingerprint, p.fingerprint)
}

// replay turns the recorded outcome of the key with this UUID into the answer of
// a call. Work whose outcome cannot be read is not run again.
func replay[T any](op *Operation[T], sealing *Sealing, rec Record, id [16]byte) (value T, err error) {
	fail := func(kind, cause error) error {
		return &failure{kind: kind, key: rec.Key, attempt: rec.Attempt, cause: cause}
	}
	out, err := sealing.open(rec, id)
	if err != nil {
		return value, err
	}
	var rejection error
	if out.Rejected {
		rejection = fail(ErrRejected, nil)
	}
	if out.Omitted {
		return value, fail(ErrOutcomeUnavailable, rejection)
	}
	if value, err = op.decode(out); err != nil {
		return value, fail(ErrOutcomeUnavailable, errors.Join(err, rejection))
	}
	return value, rejection
}

// tell fills in the Report and the observation of a call.
func (w Work[T]) tell(seen *observation, rec Record, mine bool, err error) {
	r := Report{Replayed: !mine && err == nil && rec.Status == Done, Attempt: rec.Attempt}
	if w.report != nil {
		*w.report = r
	}
	seen.tell(r, rec.Status, rec.Outcome.Rejected, err)
}

// tellMet reports the step of a call that found its key taken.
func (c *call) tellMet(ctx context.Context, rec Record, mine bool, err error) {
	switch {
	case mine:
	case err == nil && rec.Status == Done:
		c.event(ctx, observe.Replayed, rec.Attempt, nil)
	case errtree.HasAny(err, ErrInProgress, ErrMismatch, ErrExpired, ErrParked):
		c.event(ctx, observe.Refused, rec.Attempt, err)
	}
}

func (c *call) event(ctx context.Context, name string, attempt int64, err error) {
	c.opts.Tell(ctx, Event{Name: name, Key: c.key, Attempt: attempt, Err: err})
}
