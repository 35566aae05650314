package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// doWorker handles messages by effects outside the database.
type doWorker[T any] struct {
	*consumerRun
	op   once.Operation[T]
	call func(context.Context, once.Key, *broker.Message) (T, error)
}

func newDoWorker[T any](c *Consumer, st once.Store, op *once.Operation[T],
	handle func(context.Context, once.Key, *broker.Message) (T, error)) (*consumerRun, error) {

	switch {
	case c.Checkpoint:
		return nil, invalid("consumer %q: a position cannot commit together with an effect outside the database: leave Checkpoint out", c.Name)
	case c.Rebuild != "":
		return nil, invalid("consumer %q: a rebuild refuses outside effects, and a Do handler has nothing else", c.Name)
	case op.Name != "" && op.Name != c.Name:
		return nil, invalid("consumer %q: its keys are named by the consumer: leave the Name of the operation (%q) empty", c.Name, op.Name)
	case op.Lookup == nil && op.OnUnknown == 0:
		return nil, invalid("consumer %q: after a crash nobody can tell whether the effect of a message happened: give the operation "+
			"a Lookup that asks, or choose OnUnknown: Park or Resend", c.Name)
	}
	s, err := c.newShiftOf(st, false)
	if err != nil {
		return nil, err
	}
	w := &doWorker[T]{consumerRun: s, op: *op, call: handle}
	if w.op.Policy == (once.Policy{}) {
		w.op.Policy = s.Policy
	}
	s.shape, s.effects = w, true
	return s, nil
}

func (w *doWorker[T]) prepare() { w.op.Name = w.keys }

func (w *doWorker[T]) newSession(*seeks) {}

func (w *doWorker[T]) handle(ctx context.Context, items []*item) []result {
	return []result{w.one(ctx, items[0])}
}

func (w *doWorker[T]) one(ctx context.Context, it *item) result {
	if it.wrong != nil {
		return result{kind: hopeless, reason: it.wrong.Error()}
	}
	held, err := w.isBehind(ctx, it)
	if !held && err == nil && !it.counted {
		held, err = w.waits(ctx, it)
	}
	switch {
	case err != nil:
		return w.troubled(ctx, it, err)
	case held:
		return w.behindUnlessKnown(ctx, it)
	}
	var last bool
	if !it.counted {
		var f *result
		if f, last = w.worn(ctx, it); f != nil {
			return *f
		}
	}
	leave, err := w.floor.enter(ctx, last)
	if err != nil {
		return result{kind: again, reason: err.Error()}
	}
	defer leave()
	it.counted = true
	report, failed, err := w.do(ctx, it)
	return w.judgeEffect(ctx, it, err, failed, report)
}

// worn is the result of an item that was begun as often as it may be, unless that can be found out. Else it is nil, and
// last says whether this is the last attempt, after one that never ended.
func (w *doWorker[T]) worn(ctx context.Context, it *item) (f *result, last bool) {
	rec, err := w.store.Get(ctx, it.key)
	if err != nil || rec.Attempt < int64(w.Retry.Attempts) {
		return nil, err == nil && rec.Status == once.Unknown && rec.Attempt == int64(w.Retry.Attempts)-1
	}
	if rec.Status == once.Unknown && w.op.Lookup != nil {
		if rec, err = w.op.Ask(ctx, w.store, rec); err != nil && !errors.Is(err, once.ErrOutcomeUnknown) {
			return nil, false // the next try finds out
		}
	}
	switch rec.Status {
	case once.Unknown:
		return &result{kind: hopeless, reason: unknownOutcome + "begun too often, and never ended: it may end its process"}, false
	case once.Running: // perhaps by whoever has just died of it
		return &result{kind: again, after: min(max(rec.LeaseLeft, 50*time.Millisecond), trouble)}, false
	case once.Absent:
		return &result{kind: hopeless, reason: fmt.Sprintf("tried %d times, and never dealt with: %s", rec.Attempt, w.store.Options().Sealing.OpenReason(rec))}, false
	}
	return nil, false // it is done, or a person is to decide
}

// behindUnlessKnown is the result of an item whose ordering key is on the shelf: a copy of what was handled before has
// nothing to wait for.
func (w *doWorker[T]) behindUnlessKnown(ctx context.Context, it *item) result {
	rec, err := w.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return w.troubled(ctx, it, err)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return w.met(ctx, it, rec)
	}
	return result{kind: behind}
}

func (w *doWorker[T]) do(ctx context.Context, it *item) (report once.Report, failed *failure, err error) {
	work := workOn(&w.op, it).Report(&report)
	if it.Redelivered {
		work = work.Redelivered()
	}
	_, err = once.Do(ctx, w.store, work, func(ctx context.Context, key once.Key) (value T, err error) {
		failed = guarded(func() error {
			value, err = w.call(ctx, key, it.Message)
			return err
		})
		if failed != nil {
			return value, failed
		}
		return value, nil
	})
	return report, failed, err
}

// judgeEffect is judge for work that may have happened although it failed.
func (w *doWorker[T]) judgeEffect(ctx context.Context, it *item, err error, failed *failure, report once.Report) result {
	mine := failed != nil && errors.Is(err, failed)
	if !mine || errors.Is(err, once.ErrRejected) && !errors.Is(err, once.ErrOutcomeUnknown) {
		if errors.Is(err, once.ErrOutcomeUnknown) { // Lookup has no answer yet
			after, _ := once.MayRetry(err)
			return result{kind: failing, after: max(after, w.Retry.wait(max(report.Attempt, 1))), reason: err.Error()}
		}
		if rec, looked := w.store.Get(ctx, it.key); err != nil && looked == nil && rec.Status == once.Done && w.sameInput(it, rec) {
			return result{kind: handled} // its value could not be kept
		}
		f := w.judge(ctx, it, err, nil, report)
		if f.kind == hopeless && errors.Is(err, once.ErrParked) {
			f.reason = unknownOutcome + f.reason
		}
		return f
	}
	w.Stats.Failed.Add(1)
	it.failed = report.Attempt
	w.logger.WarnContext(ctx, "inbox: failed", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"attempt", report.Attempt, "error", err)
	after, retry := once.MayRetry(err)
	unknown := ""
	if errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked) || errors.Is(err, once.ErrLeaseLost) {
		unknown = unknownOutcome
	}
	if !retry || report.Attempt >= int64(w.Retry.Attempts) {
		return result{kind: hopeless, reason: unknown + err.Error()}
	}
	return result{kind: failing, after: max(after, w.Retry.wait(report.Attempt)), reason: unknown + err.Error()}
}

func (w *doWorker[T]) handleShelved(ctx context.Context, it *item, m store.Shelved) (became resultKind, left bool, err error) {
	report, failed, err := w.do(ctx, it)
	switch known := isKnown(report, err); {
	case known && failed != nil && errors.Is(err, failed):
		return handled, true, nil
	case known:
		return duplicate, true, nil
	case err != nil:
		return again, false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	err = w.shelf.Change(ctx, m)
	if errors.Is(err, once.ErrLeaseLost) { // another process has it, and will find the key done
		err = nil
	}
	return handled, false, err
}

// isKnown reports whether a call found its key done, or has recorded a no.
func isKnown(report once.Report, err error) bool {
	return err == nil && report.Replayed || isAnswer(err)
}

func isAnswer(err error) bool {
	return (errors.Is(err, once.ErrRejected) || errors.Is(err, once.ErrExpired) || errors.Is(err, once.ErrOutcomeUnavailable)) &&
		!errors.Is(err, once.ErrOutcomeUnknown)
}
