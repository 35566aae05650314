package inbox

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	storeTime  = 10 * time.Second // for what has to be written whatever becomes of the run
	shelfAfter = 5 * time.Second  // a longer wait is spent on the shelf, where it takes no place in the window
	trouble    = time.Second      // after an error that is not the message's
)

// unknownOutcome begins the reason of a message whose effect may have happened.
const unknownOutcome = store.UnknownOutcome

// resolve turns fates that ask for something into final ones, or into another try.
func (s *consumerRun) resolve(ctx context.Context, it *item, f result) result {
	if f.kind != failing && f.kind != behind && f.kind != hopeless {
		return f
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	switch f.kind {
	case failing:
		return s.later(ctx, it, f)
	case behind:
		return s.wait(ctx, it, 0, errHeld.Error())
	default:
		return s.park(ctx, it, f.reason)
	}
}

// later decides when and where a message that failed is tried again.
func (s *consumerRun) later(ctx context.Context, it *item, f result) result {
	it.tries++
	if f.after < shelfAfter || s.shelf == nil {
		return result{kind: again, after: f.after, reason: f.reason}
	}
	return s.wait(ctx, it, f.after, f.reason)
}

// wait puts a message on the shelf until its time.
func (s *consumerRun) wait(ctx context.Context, it *item, due time.Duration, reason string) result {
	err := s.nameOnShelf(ctx, it)
	if err == nil {
		err = s.shelf.Shelve(ctx, []store.Shelved{s.aside(it, store.Waiting, due, reason)})
	}
	if err != nil {
		return s.troubled(ctx, it, err)
	}
	return result{kind: shelved, reason: reason}
}

// waits reports whether an item has nothing to do but to wait on the shelf: behind another of its ordering key, or because
// it is there itself, and this is a copy. Whatever waits is not tried, and so has no attempt.
func (s *consumerRun) waits(ctx context.Context, it *item) (bool, error) {
	if s.shelf == nil {
		return false, nil
	}
	if held, err := s.isBehind(ctx, it); held || err != nil {
		return held, err
	}
	if it.order != "" && s.OnParked == HoldOrder { // and so it is not there
		return false, nil
	}
	err := s.nameOnShelf(ctx, it)
	return it.there, err
}

// isBehind reports whether an item has to wait for one of its ordering key that is on the shelf.
func (s *consumerRun) isBehind(ctx context.Context, it *item) (bool, error) {
	if s.shelf == nil || it.order == "" {
		return false, nil
	}
	q := store.ShelfQuery{Consumer: s.keys, OrderingKey: it.order, States: []store.ShelfState{store.Waiting}, Limit: 1, Bodiless: true}
	if s.OnParked == HoldOrder {
		q.States = append(q.States, store.Parked)
	}
	found, err := s.shelf.Shelved(ctx, q)
	return len(found) > 0, err
}

// park puts a message aside for a person, and its key with it, so that copies of it find that out. The message is on the
// shelf before its key says so: a crash between leaves it there twice at worst, on the shelf and at the broker.
func (s *consumerRun) park(ctx context.Context, it *item, reason string) result {
	if err := s.nameOnShelf(ctx, it); err != nil {
		return s.troubled(ctx, it, err)
	}
	if it.waiting { // the message on the shelf has attempts left
		return result{kind: shelved, reason: reason}
	}
	m := s.aside(it, store.Parked, 0, reason)
	if s.shelf != nil {
		if err := s.shelf.Shelve(ctx, []store.Shelved{m}); err != nil {
			return s.troubled(ctx, it, err)
		}
	}
	if it.wrong == nil && s.keyed {
		if err := s.parkKey(ctx, it, m.Reason); err != nil {
			return s.troubled(ctx, it, err)
		}
	}
	s.logger.ErrorContext(ctx, "inbox: parked", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"reason", m.Reason)
	return result{kind: parked, reason: m.Reason}
}

// parkKey parks the key of a message, unless it is done, or parked already.
func (s *consumerRun) parkKey(ctx context.Context, it *item, reason string) error {
	rec, err := s.store.Get(ctx, it.key)
	own := name.Token()
	if err == nil && rec.Status == once.Absent {
		rec, err = s.store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: it.key, Owner: own}, Lease: s.Policy.Lease,
			Fingerprint: s.fingerprint(it), Cause: it.cause()})
	}
	if err != nil || rec.Status != once.Unknown && (rec.Status != once.Running || rec.Owner != own) {
		return err
	}
	fence := once.Fence{Key: it.key, Owner: rec.Owner, Attempt: rec.Attempt}
	err = s.store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked,
		Reason: s.store.Options().Sealing.SealReason(it.key, reason)})
	if errors.Is(err, once.ErrLeaseLost) { // it has moved on: whoever moved it knows better
		return nil
	}
	return err
}

// troubled is the result of a message whose store does not do as it should.
func (s *consumerRun) troubled(ctx context.Context, it *item, err error) result {
	it.excuse()
	s.logger.WarnContext(ctx, "inbox: the store is in trouble, and the message waits", logs.Spaced(""), "message", it.Message.ID,
		"origin", it.Origin, "error", err)
	return result{kind: again, after: trouble, reason: err.Error()}
}

// met is the result of an item whose key is somebody else's.
func (s *consumerRun) met(ctx context.Context, it *item, rec once.Record) result {
	switch {
	case rec.Status != once.Running && !s.sameInput(it, rec):
		return s.mismatch(it)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return result{kind: duplicate}
	case rec.Status == once.Parked:
		return s.onShelf(s.store.Options().Sealing.OpenReason(rec))
	case rec.Status == once.Running:
		return result{kind: again, after: min(max(rec.LeaseLeft, 50*time.Millisecond), trouble)}
	}
	return s.troubled(ctx, it, fmt.Errorf("a claim met the status %v", rec.Status))
}

// mismatch parks a message whose key had another input.
func (s *consumerRun) mismatch(it *item) result {
	it.wrong = once.ErrMismatch
	return result{kind: hopeless, reason: "another message with the key " + it.key.ID + " had another input: the key is too coarse, " +
		"or an ID was used twice"}
}

// onShelf is the result of a message whose key is parked. A transaction's key is parked when the message is on the shelf, that
// of an effect before, and without a shelf perhaps before the broker has it.
func (s *consumerRun) onShelf(reason string) result {
	if s.shelf != nil && !s.effects {
		return result{kind: duplicate}
	}
	return result{kind: hopeless, reason: reason}
}

func (s *consumerRun) sameInput(it *item, rec once.Record) bool {
	return it.input == nil || len(rec.Fingerprint) == 0 || hmac.Equal(s.fingerprint(it), rec.Fingerprint)
}

// judge turns the result of once.DoTx and once.Do into a result. failed is the handler's error, if it ran.
func (s *consumerRun) judge(ctx context.Context, it *item, err error, failed *failure, report once.Report) result {
	handlers := failed != nil && errors.Is(err, failed)
	switch {
	case err == nil && !report.Replayed:
		return result{kind: handled}
	case handlers && errors.Is(err, once.ErrRejected) && errors.Is(err, errDuplicate):
		return result{kind: prevented}
	case handlers && errors.Is(err, once.ErrRejected):
		return result{kind: handled}
	case handlers:
		return s.failed(ctx, it, failed.err)
	case err == nil, isAnswer(err):
		return result{kind: duplicate}
	case errors.Is(err, errHeld):
		return result{kind: behind}
	case errors.Is(err, once.ErrMismatch):
		return s.mismatch(it)
	}
	return s.refused(ctx, it, err)
}

// refused is the result of an item that the store, or the state of its key, has kept from its handler.
func (s *consumerRun) refused(ctx context.Context, it *item, err error) result {
	after, retry := once.MayRetry(err)
	switch {
	case errors.Is(err, once.ErrClosed):
		s.fatal(err)
		return result{kind: again}
	case errors.Is(err, once.ErrParked):
		return s.onShelf(err.Error())
	case errors.Is(err, once.ErrInProgress):
		return result{kind: again, after: min(max(after, 50*time.Millisecond), trouble)}
	case !retry && ctx.Err() == nil:
		return result{kind: hopeless, reason: err.Error()}
	}
	return s.troubled(ctx, it, err)
}

// failed is the result of an item whose handler has failed when it was alone.
func (s *consumerRun) failed(ctx context.Context, it *item, err error) result {
	s.Stats.Failed.Add(1)
	after, retry := once.MayRetry(err)
	if !retry {
		return result{kind: hopeless, reason: err.Error()}
	}
	if ctx.Err() != nil { // it was told to stop
		it.excuse()
		return result{kind: again, reason: err.Error()}
	}
	if !it.prepaid {
		s.count(ctx, it)
	}
	it.prepaid = false
	s.logger.WarnContext(ctx, "inbox: failed", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"attempt", it.failed, "error", err)
	if it.failed >= int64(s.Retry.Attempts) {
		return result{kind: hopeless, reason: fmt.Sprintf("failed %d times, at last with: %v", it.failed, err)}
	}
	return result{kind: failing, after: max(after, s.Retry.wait(it.failed)), reason: err.Error()}
}

// wait is the time before the next attempt.
func (r Retry) wait(attempts int64) time.Duration {
	b := &backoff.Backoff{First: r.First, Limit: r.Limit}
	d := b.Next()
	for range min(attempts-1, 64) {
		d = b.Next()
	}
	return d
}
