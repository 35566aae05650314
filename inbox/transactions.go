package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/rerun"
)

// errAgain is returned by a transaction that has to run again, because it found
// something in its way and knows how to go on.
var errAgain = errors.New("inbox: the transaction runs again")

// repeat runs a transaction until it is done: again after errAgain, a conflict,
// or a commit of which it is not known whether it happened. Each run uses the
// same claims, so a run recognises what an earlier one committed.
func (e *env) repeat(ctx context.Context, run func(context.Context) error) error {
	runs := rerun.New(e.store.Options().Turn)
	defer runs.Done()
	for {
		err := run(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errAgain):
		case errors.Is(err, once.ErrOutcomeUnknown) && handlerErrorOf(err) == nil:
			if !runs.Lost() {
				return err
			}
			longer, cancel := outlive(ctx, storeTime) // the outcome is found out even if the run ends
			defer cancel()
			ctx = longer
		case !errors.Is(err, once.ErrConflict):
			return err
		}
		if waiting := runs.Again(ctx, errors.Is(err, once.ErrConflict)); waiting != nil {
			if ctx.Err() != nil || errors.Is(err, errAgain) {
				return waiting
			}
			return err
		}
	}
}

// outlive returns a context that ends later than ctx, by d.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// isOurs reports whether a claim with this token succeeded.
func isOurs(rec once.Record, token [16]byte) bool {
	return rec.HeldBy(token)
}

// claimRequest is the claim of an item's key under its token.
func (e *env) claimRequest(it *item) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: it.key, Owner: it.token}, Lease: e.Policy.Lease, Fingerprint: e.fingerprint(it), Cause: it.cause()}
}

// freshClaimRequest is the claim of an item's key under a new token.
func (e *env) freshClaimRequest(it *item) once.ClaimRequest {
	r := e.claimRequest(it)
	r.Owner = name.Token()
	return r
}
