package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

// Archivable lets records be kept elsewhere before they are forgotten. Instead of
// calling Forget of once.Store, which drops records that nobody has kept, the
// caller asks for records that are past their time, keeps them, and has exactly
// those forgotten. Nothing is held in the store between the two calls: no lock and
// no transaction.
type Archivable interface {
	// Forgettable returns records that Forget would change now, at most limit, as they
	// are in the store. If the store has them in that order, those that have been due
	// for longest come first. Records that are being changed may be left out.
	//
	//	the record is   due if
	//	Done            it has an outcome that is past its KeepOutcome
	//	Expired         it has no outcome, and is past its KeepKey
	//	Absent          it was released, and the count of its attempts is past its
	//	                KeepKey
	//
	// The work is bounded: a page ends early when its outcomes reach [MaxForgettable].
	// more reports that there may be more to forget, even if due is empty.
	//
	// A limit below 1 is once.ErrInvalid. errors.ErrUnsupported means that this store
	// cannot do it, with the reason in its text. once.ErrCorrupt means that records
	// past their time are damaged, and comes together with the others; Forget removes
	// what is damaged.
	Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error)

	// ForgetRecords forgets records that Forgettable returned, as Forget does: it
	// drops an outcome past its KeepOutcome, and deletes a key past its KeepKey. It
	// skips a record whose Owner or Attempt has changed. Done is final, so these
	// identify one outcome. It takes one short transaction, may be interrupted
	// anywhere, and may be repeated. It returns how many records it changed.
	ForgetRecords(ctx context.Context, due []once.Record) (int, error)
}

// MaxForgettable is the size, in bytes, that the outcomes of a page of Forgettable
// may reach. The last one may exceed it.
const MaxForgettable = 16 << 20

// ManyGetter reads several records at once.
type ManyGetter interface {
	// GetMany is Get for each key, in their order. Records have their outcomes, so
	// the caller limits how many keys it gives.
	GetMany(ctx context.Context, keys []once.Key) ([]once.Record, error)
}

// IDFinder finds keys by what their IDs contain.
type IDFinder interface {
	// FindIDs returns keys whose ID contains part, byte by byte, and that have a
	// record. They are in no order, and their number is at most limit: default 100, at
	// most 1,000. Nothing is found if part is not valid as an ID. FindIDs may read all
	// records, so the caller limits its time.
	FindIDs(ctx context.Context, part string, limit int) ([]once.Key, error)
}

// Reopener lets a person have work that is done run again.
type Reopener interface {
	// Reopen makes a Done or Expired record Absent, which frees its key. Its outcome
	// is gone. Its attempt stays counted, with the reason, for keepKey from now.
	//
	// It does so only if fence is that of the attempt that is done. Otherwise it
	// returns once.ErrLeaseLost and changes nothing. Repeating it returns nil until
	// somebody has claimed the key.
	//
	// For the owner in fence, the key is as after a release: its later calls change
	// nothing.
	Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error
}

// Reopen records the decision of a person that the work of a Done or Expired record
// is to run again, and why. rec is the record as it was read. Nothing runs at once:
// the next call with the key runs the work, so its effect may happen twice.
//
// The key is passed on as before. A system that still honours it returns its first
// answer, and does nothing. Steps below the key have their own records, and stay
// done. Lookup is asked about the same key: if the next attempt crashes and Lookup
// finds the first effect, that is recorded as the outcome.
//
// Reopen returns once.ErrLeaseLost if the record has changed since it was read, even
// if somebody else has reopened it, and errors.ErrUnsupported if the store is not a
// [Reopener]. After any other error of the store, the decision may have been
// recorded. A call that was waiting for another with its key may still return the
// old answer, with Replayed set in its Report.
func Reopen(ctx context.Context, s once.Store, rec once.Record, reason string) error {
	r, ok := once.As[Reopener](s)
	switch {
	case reason == "":
		return fmt.Errorf("%w: a decision needs a reason: who decided, and why", once.ErrInvalid)
	case rec.Status != once.Done && rec.Status != once.Expired:
		return fmt.Errorf("%w: a record in status %v is not done: only done and expired ones are reopened", once.ErrInvalid, rec.Status)
	case !ok:
		return fmt.Errorf("%w: %T is no store.Reopener", errors.ErrUnsupported, s)
	}
	fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
	reason = name.Reason(reason)
	if err := r.Reopen(ctx, fence, keepReopened, reason); err != nil {
		return err
	}
	now, err := s.Get(ctx, rec.Key)
	switch {
	case err != nil:
		return err
	case now.Attempt == rec.Attempt && now.Status == once.Absent && now.Reason != reason: // it took this for a repetition of another
		return fmt.Errorf("%w: somebody else has reopened attempt %d of %s %q", once.ErrLeaseLost, rec.Attempt, rec.Key.Operation, rec.Key.ID)
	}
	s.Options().Tell(ctx, once.Event{Name: observe.Decided, Key: rec.Key, Attempt: rec.Attempt})
	return nil
}

// keepReopened is how long the decision is kept. It is long, as the operation's
// policy is not known here.
const keepReopened = 365 * 24 * time.Hour
