package inbox

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
)

// judge returns the result of an item after once.DoTx or once.Do.
func (e *env) judge(ctx context.Context, it *item, err error, report once.Report) result {
	failed := handlerErrorOf(err)
	switch {
	case err == nil && !report.Replayed:
		return result{kind: handled}
	case failed != nil && failed.rejects():
		return rejection(err)
	case failed != nil:
		return e.failed(ctx, it, failed.err)
	case err == nil, isAnswer(err):
		return result{kind: duplicate}
	case errors.Is(err, errBlocked):
		return result{kind: blocked}
	case errors.Is(err, once.ErrMismatch):
		return e.mismatch(it)
	}
	return e.refused(ctx, it, err)
}

// rejection is the result of an item whose handler returned Duplicate or
// ErrRejected, after that is recorded.
func rejection(err error) result {
	if errors.Is(err, errDuplicate) {
		return result{kind: prevented}
	}
	return result{kind: handled}
}

// isReplay reports whether a call found its key done, or has recorded a
// rejection.
func isReplay(report once.Report, err error) bool {
	return err == nil && report.Replayed || isAnswer(err)
}

// isAnswer reports whether an error means that the key is done.
func isAnswer(err error) bool {
	return (errors.Is(err, once.ErrRejected) || errors.Is(err, once.ErrExpired) || errors.Is(err, once.ErrOutcomeUnavailable)) &&
		!errors.Is(err, once.ErrOutcomeUnknown)
}

// refused is the result of an item that did not get to its handler, because of
// the store or of the state of its key.
func (e *env) refused(ctx context.Context, it *item, err error) result {
	after, retry := once.MayRetry(err)
	switch {
	case errors.Is(err, once.ErrClosed):
		e.fatal(err)
		return result{kind: again}
	case errors.Is(err, once.ErrParked):
		return e.keyParked(err.Error())
	case errors.Is(err, once.ErrInProgress):
		return inProgress(after)
	case errors.Is(err, errBeganLate):
		return result{kind: again}
	case !retry && ctx.Err() == nil:
		return result{kind: toPark, reason: err.Error()}
	}
	return e.troubled(ctx, it, err)
}

// failed is the result of an item whose handler failed when it was alone.
func (e *env) failed(ctx context.Context, it *item, err error) result {
	e.Stats.Failed.Add(1)
	after, retry := once.MayRetry(err)
	if !retry {
		return result{kind: toPark, reason: err.Error()}
	}
	if ctx.Err() != nil { // the handler was told to stop
		it.excuse()
		return result{kind: again, reason: err.Error()}
	}
	if instead := e.unblamed(ctx, it, err); instead != nil {
		return *instead
	}
	if !it.keepCount() {
		e.count(ctx, it)
	}
	e.logFailed(ctx, it, err)
	if it.attempts.begun >= int64(e.Retry.Attempts) {
		if instead := e.notParked(ctx, it, err); instead != nil {
			return *instead
		}
		return result{kind: toPark, reason: it.attempts.usedUp(err)}
	}
	return result{kind: failing, after: max(after, e.Retry.wait(it.attempts.begun)), reason: err.Error()}
}

// unblamed returns the result of an item whose attempt failed because its topic is
// down, or nil. Such an attempt does not count.
func (e *env) unblamed(ctx context.Context, it *item, err error) *result {
	whose, after := e.outages.failed(ctx, it, err)
	if whose == itsFault {
		return nil
	}
	it.excuse()
	return e.waitingUp(it, after, err)
}

// notParked returns the result of an item whose attempts are used up, and that is
// not to blame for that, or nil. Nothing got through since it first failed, so none
// of its failures counts: the next one may be that of an attempt that began before
// the outage was over.
func (e *env) notParked(ctx context.Context, it *item, err error) *result {
	parks, after := e.outages.mayPark(ctx, it, err, e.Retry.Attempts)
	if parks {
		e.outages.forget(it)
		return nil
	}
	it.change(attemptCount{-it.attempts.failed, -it.attempts.failed})
	return e.waitingUp(it, after, err)
}

// waitingUp is the result of an item that failed while its topic is down.
func (e *env) waitingUp(it *item, after time.Duration, err error) *result {
	it.waitsUp = true
	after = max(after, min(e.Retry.wait(int64(it.tries+1)), probeLimit))
	return &result{kind: failing, after: after, reason: err.Error()}
}

func (e *env) logFailed(ctx context.Context, it *item, err error) {
	e.logger.WarnContext(ctx, "inbox: failed", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"attempt", it.attempts.begun, "error", err)
}

// usedUp is the reason of an item that has begun as often as it may. err is that
// of its last attempt; nil if that never ended, or if it is not known here.
func (n attemptCount) usedUp(err error) string {
	unended := n.begun - n.failed
	var text string
	switch {
	case unended == 0:
		text = "failed " + times(n.failed)
	case n.failed == 0:
		text = "begun " + times(n.begun) + ", at last alone, and never ended: it may end its process"
	case err == nil:
		text = fmt.Sprintf("failed %s, and was begun %s more, at last alone, and never ended: it may end its process", times(n.failed), times(unended))
	default:
		text = fmt.Sprintf("failed %s, after %s that never ended", times(n.failed), attempts(unended))
	}
	if err != nil {
		text += ", at last with: " + err.Error()
	}
	return text
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func attempts(n int64) string {
	if n == 1 {
		return "an attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// met is the result of an item whose key was claimed by another delivery.
func (e *env) met(ctx context.Context, it *item, rec once.Record) result {
	switch {
	case rec.Status != once.Running && !e.sameInput(it, rec):
		return e.mismatch(it)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return result{kind: duplicate}
	case rec.Status == once.Parked:
		return e.keyParked(e.store.Options().Sealing.OpenReason(rec))
	case rec.Status == once.Running:
		return inProgress(rec.LeaseLeft)
	}
	return e.troubled(ctx, it, fmt.Errorf("a claim met the status %v", rec.Status))
}

// inProgress is the result of an item whose key another attempt has.
func inProgress(left time.Duration) result {
	return result{kind: again, after: min(max(left, 50*time.Millisecond), storePause)}
}

// mismatch parks an item whose key was used with another input.
func (e *env) mismatch(it *item) result {
	it.keyErr = once.ErrMismatch
	return result{kind: toPark, reason: "another message with the key " + it.key.ID + " had another input: the key is too coarse, " +
		"or an ID was used twice"}
}

// keyParked is the result of an item whose key is parked. A transaction's key is
// parked after its message is on the shelf. The key of an effect is parked
// before, and without a shelf perhaps before the broker has the dead letter.
func (e *env) keyParked(reason string) result {
	if e.shelf != nil && e.mode != outside {
		return result{kind: duplicate}
	}
	return result{kind: toPark, reason: reason}
}

func (e *env) sameInput(it *item, rec once.Record) bool {
	return it.input == nil || len(rec.Fingerprint) == 0 || hmac.Equal(e.fingerprint(it), rec.Fingerprint)
}

// parkOld returns the results of items that are too old to be told from new,
// and the items that are not. Those at a position need no key for that. Items
// whose lane has one before them that is about to be parked are tried again.
func (e *env) parkOld(ctx context.Context, items []*item) (results []result, rest []*item) {
	results = repeated(result{kind: again}, items)
	waits := make(map[string]bool) // lanes
	for i, it := range items {
		switch {
		case waits[it.lane]:
		case e.mode != inOrder && it.keyErr == nil && e.tooOld(it):
			results[i] = e.old(ctx, it)
			waits[it.lane] = it.lane != "" && results[i].holdsUp()
		default:
			rest = append(rest, it)
		}
	}
	return results, rest
}

// old is the result of an item whose key may be forgotten although it was
// handled.
func (e *env) old(ctx context.Context, it *item) result {
	rec, err := e.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return e.troubled(ctx, it, err)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return e.met(ctx, it, rec)
	}
	return result{kind: toPark, reason: tooOldReason}
}

// wait is the delay before the next attempt.
func (r Retry) wait(attempts int64) time.Duration {
	b := &backoff.Backoff{First: r.First, Limit: r.Limit}
	d := b.Next()
	for range min(attempts-1, 64) {
		d = b.Next()
	}
	return d
}
