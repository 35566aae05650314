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
	storeTime  = 10 * time.Second // for what has to be written whatever becomes of the shift
	shelfAfter = 5 * time.Second  // a longer wait is spent on the shelf, where it takes no place in the window
	trouble    = time.Second      // after an error that is not the message's
)

// unknownOutcome begins the reason of a message whose effect may have happened.
const unknownOutcome = store.UnknownOutcome

// resolve turns fates that ask for something into final ones, or into another try.
func (s *shift) resolve(ctx context.Context, it *item, f fate) fate {
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
func (s *shift) later(ctx context.Context, it *item, f fate) fate {
	it.tries++
	if f.after < shelfAfter || s.shelf == nil {
		return fate{kind: again, after: f.after, reason: f.reason}
	}
	return s.wait(ctx, it, f.after, f.reason)
}

// wait puts a message on the shelf until its time.
func (s *shift) wait(ctx context.Context, it *item, due time.Duration, reason string) fate {
	err := s.nameOnShelf(ctx, it)
	if err == nil {
		err = s.shelf.Shelve(ctx, []store.Shelved{s.aside(it, store.Waiting, due, reason)})
	}
	if err != nil {
		return s.troubled(ctx, it, err)
	}
	return fate{kind: shelved, reason: reason}
}

// waits reports whether an item has nothing to do but to wait on the shelf: behind another of its ordering key, or because
// it is there itself, and this is a copy. Whatever waits is not tried, and so has no attempt.
func (s *shift) waits(ctx context.Context, it *item) (bool, error) {
	if s.shelf == nil {
		return false, nil
	}
	if held, err := s.isBehind(ctx, it); held || err != nil {
		return held, err
	}
	if it.order != "" && s.OnParked == Hold { // and so it is not there
		return false, nil
	}
	err := s.nameOnShelf(ctx, it)
	return it.there, err
}

// isBehind reports whether an item has to wait for one of its ordering key that is on the shelf.
func (s *shift) isBehind(ctx context.Context, it *item) (bool, error) {
	if s.shelf == nil || it.order == "" {
		return false, nil
	}
	q := store.ShelfQuery{Consumer: s.keys, OrderingKey: it.order, States: []store.ShelfState{store.Waiting}, Limit: 1, Bodiless: true}
	if s.OnParked == Hold {
		q.States = append(q.States, store.Parked)
	}
	found, err := s.shelf.Shelved(ctx, q)
	return len(found) > 0, err
}

// park puts a message aside for a person, and its key with it, so that copies of it find that out. The message is on the
// shelf before its key says so: a crash between leaves it there twice at worst, on the shelf and at the broker.
func (s *shift) park(ctx context.Context, it *item, reason string) fate {
	if err := s.nameOnShelf(ctx, it); err != nil {
		return s.troubled(ctx, it, err)
	}
	if it.waiting { // the message on the shelf has attempts left
		return fate{kind: shelved, reason: reason}
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
	return fate{kind: parked, reason: m.Reason}
}

// parkKey parks the key of a message, unless it is done, or parked already.
func (s *shift) parkKey(ctx context.Context, it *item, reason string) error {
	rec, err := s.store.Get(ctx, it.key)
	own := name.Token()
	if err == nil && rec.Status == once.Absent {
		rec, err = s.store.Claim(ctx, once.Request{Hold: once.Hold{Key: it.key, Owner: own}, Lease: s.Policy.Lease,
			Fingerprint: s.fingerprint(it)})
	}
	if err != nil || rec.Status != once.Unknown && (rec.Status != once.Running || rec.Owner != own) {
		return err
	}
	hold := once.Hold{Key: it.key, Owner: rec.Owner, Attempt: rec.Attempt}
	err = s.store.Settle(ctx, once.Settlement{Hold: hold, Status: once.Parked,
		Reason: s.store.Options().Sealing.SealReason(it.key, reason)})
	if errors.Is(err, once.ErrLeaseLost) { // it has moved on: whoever moved it knows better
		return nil
	}
	return err
}

// troubled is the fate of a message whose store does not do as it should.
func (s *shift) troubled(ctx context.Context, it *item, err error) fate {
	it.excuse()
	s.logger.WarnContext(ctx, "inbox: the store is in trouble, and the message waits", logs.Spaced(""), "message", it.Message.ID,
		"origin", it.Origin, "error", err)
	return fate{kind: again, after: trouble, reason: err.Error()}
}

// met is the fate of an item whose key is somebody else's.
func (s *shift) met(ctx context.Context, it *item, rec once.Record) fate {
	switch {
	case rec.Status != once.Running && !s.sameInput(it, rec):
		return s.mismatch(it)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return fate{kind: duplicate}
	case rec.Status == once.Parked:
		return s.onShelf(s.store.Options().Sealing.OpenReason(rec))
	case rec.Status == once.Running:
		return fate{kind: again, after: min(max(rec.LeaseLeft, 50*time.Millisecond), trouble)}
	}
	return s.troubled(ctx, it, fmt.Errorf("a claim met the status %v", rec.Status))
}

// mismatch parks a message whose key had another input.
func (s *shift) mismatch(it *item) fate {
	it.wrong = once.ErrMismatch
	return fate{kind: hopeless, reason: "another message with the key " + it.key.ID + " had another input: the key is too coarse, " +
		"or an ID was used twice"}
}

// onShelf is the fate of a message whose key is parked. A transaction's key is parked when the message is on the shelf, that
// of an effect before, and without a shelf perhaps before the broker has it.
func (s *shift) onShelf(reason string) fate {
	if s.shelf != nil && !s.effects {
		return fate{kind: duplicate}
	}
	return fate{kind: hopeless, reason: reason}
}

func (s *shift) sameInput(it *item, rec once.Record) bool {
	return it.input == nil || len(rec.Fingerprint) == 0 || hmac.Equal(s.fingerprint(it), rec.Fingerprint)
}

// judge turns the result of once.DoTx and once.Do into a fate. failed is the handler's error, if it ran.
func (s *shift) judge(ctx context.Context, it *item, err error, failed *failure, report once.Report) fate {
	handlers := failed != nil && errors.Is(err, failed)
	switch {
	case err == nil && !report.Replayed:
		return fate{kind: handled}
	case handlers && errors.Is(err, once.ErrRejected) && errors.Is(err, errDuplicate):
		return fate{kind: prevented}
	case handlers && errors.Is(err, once.ErrRejected):
		return fate{kind: handled}
	case handlers:
		return s.failed(ctx, it, failed.err)
	case err == nil, isAnswer(err):
		return fate{kind: duplicate}
	case errors.Is(err, errHeld):
		return fate{kind: behind}
	case errors.Is(err, once.ErrMismatch):
		return s.mismatch(it)
	}
	return s.refused(ctx, it, err)
}

// refused is the fate of an item that the store, or the state of its key, has kept from its handler.
func (s *shift) refused(ctx context.Context, it *item, err error) fate {
	after, retry := once.MayRetry(err)
	switch {
	case errors.Is(err, once.ErrClosed):
		s.fatal(err)
		return fate{kind: again}
	case errors.Is(err, once.ErrParked):
		return s.onShelf(err.Error())
	case errors.Is(err, once.ErrInProgress):
		return fate{kind: again, after: min(max(after, 50*time.Millisecond), trouble)}
	case !retry && ctx.Err() == nil:
		return fate{kind: hopeless, reason: err.Error()}
	}
	return s.troubled(ctx, it, err)
}

// failed is the fate of an item whose handler has failed when it was alone.
func (s *shift) failed(ctx context.Context, it *item, err error) fate {
	s.Stats.Failed.Add(1)
	after, retry := once.MayRetry(err)
	if !retry {
		return fate{kind: hopeless, reason: err.Error()}
	}
	if ctx.Err() != nil { // it was told to stop
		it.excuse()
		return fate{kind: again, reason: err.Error()}
	}
	if !it.prepaid {
		s.count(ctx, it)
	}
	it.prepaid = false
	s.logger.WarnContext(ctx, "inbox: failed", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"attempt", it.failed, "error", err)
	if it.failed >= int64(s.Retry.Attempts) {
		return fate{kind: hopeless, reason: fmt.Sprintf("failed %d times, at last with: %v", it.failed, err)}
	}
	return fate{kind: failing, after: max(after, s.Retry.wait(it.failed)), reason: err.Error()}
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
