package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// effects handles each item by an effect outside the database.
type effects[T any] struct {
	*env
	op   once.Operation[T]
	call func(context.Context, once.Key, *broker.Message) (T, error)
	ends knownEnds
}

func newEffects[T any](c *Consumer, st once.Store, op *once.Operation[T],
	call func(context.Context, once.Key, *broker.Message) (T, error)) (*effects[T], error) {

	switch {
	case c.Checkpoint:
		return nil, invalid("consumer %q: a position cannot commit together with an effect outside the database: leave Checkpoint out", c.Name)
	case c.Rebuild != "":
		return nil, invalid("consumer %q: a rebuild refuses outside effects, and a Do handler has nothing else", c.Name)
	case op.Name != "" && op.Name != c.Name:
		return nil, invalid("consumer %q: its keys are named by the consumer: give the operation (%q) the consumer's name, or none", c.Name, op.Name)
	case op.Lookup == nil && op.OnUnknown == 0:
		return nil, invalid("consumer %q: after a crash it is unknown whether the effect of a message happened: give the operation "+
			"a Lookup that asks, or choose OnUnknown: Park or Resend", c.Name)
	}
	e, err := newEnv(c, st, outside)
	if err != nil {
		return nil, err
	}
	h := &effects[T]{env: e, op: *op, call: call}
	if op.Lookup != nil {
		h.op.Lookup = func(ctx context.Context, key once.Key) (value T, found bool, err error) {
			value, found, err = op.Lookup(ctx, key)
			if found && err == nil {
				e.logger.InfoContext(ctx, "inbox: Lookup has found the effect of an attempt that did not end, and the handler is not called again", "key", key)
			}
			return value, found, err
		}
	}
	if h.op.Policy == (once.Policy{}) {
		h.op.Policy = e.Policy
	}
	return h, nil
}

func (h *effects[T]) prepare() { h.op.Name = h.keys }

func (h *effects[T]) newSession(*rereads) {}

func (h *effects[T]) handle(ctx context.Context, items []*item) []result {
	return []result{h.handleOne(ctx, items[0])}
}

func (h *effects[T]) handleOne(ctx context.Context, it *item) result {
	if it.keyErr != nil {
		return result{kind: toPark, reason: it.keyErr.Error()}
	}
	waits, err := h.isBlocked(ctx, it)
	if !waits && err == nil && it.counting == countBefore {
		waits, err = h.mustWait(ctx, it)
	}
	switch {
	case err != nil:
		return h.troubled(ctx, it, err)
	case waits:
		return h.blockedUnlessDone(ctx, it)
	}
	it.last = false
	if it.counting == countBefore {
		var instead *result
		if it.last, instead = h.attemptsLeft(ctx, it); instead != nil {
			return *instead
		}
	}
	unlock, err := h.lock.acquire(ctx, it.last)
	if err != nil {
		return result{kind: again, reason: err.Error()}
	}
	defer unlock()
	it.counting = countAfter
	report, err := h.do(ctx, it)
	r := h.judgeEffect(ctx, it, err, report)
	if r.kind == handled { // a message that is to be parked may come again first
		h.ends.forget(it.key)
	}
	if r.kind == handled && report.Attempt > 1 {
		h.endExcuse(ctx, it)
	}
	return r
}

// attemptsLeft returns a result for an item whose attempts are used up, if their
// outcome cannot be found out and it is to blame for them. Otherwise last reports
// whether one attempt is left after an attempt that never ended.
func (h *effects[T]) attemptsLeft(ctx context.Context, it *item) (last bool, instead *result) {
	rec, err := h.store.Get(ctx, it.key)
	if err != nil {
		return false, nil
	}
	counted := rec.Attempt - h.excused(ctx, it, rec.Attempt)
	if counted < int64(h.Retry.Attempts) {
		unended := rec.Status == once.Unknown || rec.NeverEnded() // others may have asked already
		return unended && counted == int64(h.Retry.Attempts)-1, nil
	}
	if rec.Status == once.Unknown && h.op.Lookup != nil {
		rec, err = h.op.Ask(ctx, h.store, rec)
		err = h.asUnanswered(ctx, it.key, false, err)
		if after, waits := h.waitForAnswer(ctx, it, err); waits {
			return false, &result{kind: failing, after: after, reason: err.Error()}
		}
		if err != nil && !errors.Is(err, once.ErrOutcomeUnknown) {
			return false, nil // the next try finds out
		}
	}
	return false, h.usedUp(ctx, it, rec)
}

// usedUp returns a result for an item whose attempts are used up, if it is to blame
// for them, or if one is running. Whoever knows how an attempt ended has excused it,
// or parked its message, unless the store did not answer.
func (h *effects[T]) usedUp(ctx context.Context, it *item, rec once.Record) *result {
	ended := h.ends.has(rec)
	switch {
	case rec.Status == once.Running: // perhaps by a process that the message has just ended
		r := inProgress(rec.LeaseLeft)
		return &r
	case rec.Status == once.Unknown && !ended:
		return &result{kind: toPark, reason: fmt.Sprintf("%sattempt %d never ended: it may end its process", unknownOutcome, rec.Attempt)}
	case rec.NeverEnded() && !ended:
		return &result{kind: toPark, reason: fmt.Sprintf("attempt %d never ended: it may end its process; %s", rec.Attempt,
			h.store.Options().Sealing.OpenReason(rec))}
	case rec.Status != once.Absent && rec.Status != once.Unknown:
		return nil // it is done, or waits for a person
	case h.outages.blames(it, h.Retry.Attempts):
		reason := fmt.Sprintf("tried %d times without success: %s", rec.Attempt, h.store.Options().Sealing.OpenReason(rec))
		if rec.Status == once.Unknown {
			reason = unknownOutcome + reason
		}
		return &result{kind: toPark, reason: reason}
	}
	it.excuses.least = rec.Attempt
	h.excuse(ctx, it)
	return nil
}

// blockedUnlessDone is the result of an item whose ordering key is on the shelf.
// A copy of a message that was handled before does not wait.
func (h *effects[T]) blockedUnlessDone(ctx context.Context, it *item) result {
	rec, err := h.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return h.troubled(ctx, it, err)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return h.met(ctx, it, rec)
	}
	return result{kind: blocked}
}

func (h *effects[T]) do(ctx context.Context, it *item) (report once.Report, err error) {
	work := workOn(&h.op, it).Report(&report)
	if it.Redelivered {
		work = work.Redelivered()
	}
	ran := false
	_, err = once.Do(ctx, h.store, work, func(ctx context.Context, key once.Key) (value T, err error) {
		defer h.recoverHandler(ctx, &err)
		ran, it.ran = true, true
		value, err = h.call(ctx, key, it.Message)
		return value, asHandlerError(err)
	})
	return report, h.asUnanswered(ctx, it.key, ran, err)
}

// judgeEffect is judge for work that may have happened although it failed.
func (h *effects[T]) judgeEffect(ctx context.Context, it *item, err error, report once.Report) result {
	if after, waits := h.waitForAnswer(ctx, it, err); waits {
		return result{kind: failing, after: after, reason: err.Error()}
	}
	failed, unknown := handlerErrorOf(err), errors.Is(err, once.ErrOutcomeUnknown)
	switch {
	case failed != nil && (unknown || !failed.rejects()):
		return h.failedEffect(ctx, it, err, report)
	case unknown: // and for so long that questions count
		h.logFailed(ctx, it, err)
		after, retry := once.MayRetry(err)
		if h.shelf == nil && (!retry || it.tries >= h.Retry.Attempts) {
			return result{kind: toPark, reason: unknownOutcome + err.Error()}
		}
		return result{kind: failing, after: max(after, shelfAfter), reason: err.Error()} // the shelf counts them
	}
	rec, getErr := h.store.Get(ctx, it.key)
	if err != nil && getErr == nil && rec.Status == once.Done && h.sameInput(it, rec) {
		return result{kind: handled} // its value could not be stored
	}
	r := h.judge(ctx, it, err, report)
	if r.kind == toPark && errors.Is(err, once.ErrParked) {
		if getErr == nil && rec.Status == once.Parked {
			r.reason = strings.TrimPrefix(h.store.Options().Sealing.OpenReason(rec), unknownOutcome)
		}
		r.reason = unknownOutcome + r.reason
	}
	return r
}

func (h *effects[T]) failedEffect(ctx context.Context, it *item, err error, report once.Report) result {
	h.Stats.Failed.Add(1)
	h.ends.add(it.key, report.Attempt)
	it.attempts = attemptCount{report.Attempt, report.Attempt}
	h.logFailed(ctx, it, err)
	reason := whyOf(err)
	if errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked) || errors.Is(err, once.ErrLeaseLost) {
		reason = unknownOutcome + reason
	}
	after, retry := once.MayRetry(err)
	if !retry {
		return result{kind: toPark, reason: reason}
	}
	if ctx.Err() != nil { // the handler was told to stop
		it.excuses.add++
		h.excuse(ctx, it)
		return result{kind: again, reason: reason}
	}
	instead := h.unblamed(ctx, it, err)
	excused := h.excused(ctx, it, report.Attempt)
	if instead == nil {
		if it.attempts.begun -= excused; it.attempts.begun < int64(h.Retry.Attempts) {
			return result{kind: failing, after: max(after, h.Retry.wait(it.attempts.begun)), reason: reason}
		}
		if instead = h.notParked(ctx, it, err); instead == nil {
			return result{kind: toPark, reason: reason}
		}
		if !it.last { // else it may end processes: its next attempt is its last one again
			it.excuses.least = report.Attempt
		}
	}
	it.excuses.add++
	counted := report.Attempt - max(excused+1, it.excuses.least)
	h.excuse(ctx, it)
	it.attempts, it.debt = attemptCount{begun: max(counted, 0)}, attemptCount{}
	return result{kind: failing, after: max(after, instead.after), reason: reason}
}

func (h *effects[T]) handleShelved(ctx context.Context, it *item, _ store.Shelved) (shelvedResult, error) {
	report, err := h.do(ctx, it)
	failed, replay := handlerErrorOf(err), isReplay(report, err)
	switch {
	case failed != nil && !failed.rejects():
		return shelvedResult{}, err
	case failed != nil && replay:
		return shelvedResult{kind: handled}, nil
	case replay:
		return shelvedResult{kind: duplicate}, nil
	case err != nil:
		return shelvedResult{}, err
	}
	if report.Attempt > 1 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
		defer cancel()
		h.endExcuse(ctx, it)
	}
	return shelvedResult{kind: handled}, nil
}
