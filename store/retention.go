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

// Archivable is a store whose records can be kept elsewhere before they are forgotten. Who wants that asks what is past
// its time, keeps it, and has exactly that forgotten, instead of calling Forget of once.Store, which forgets what nobody
// has kept. Between the two nothing is held in the store: no lock, no transaction.
type Archivable interface {
	// Forgettable returns records that Forget would change now, at most limit, those that are due for the longest time
	// first, as far as the store has them in that order. They are as they still are in the store: Done with an outcome that
	// is past its KeepOutcome, Expired without one that is past its KeepKey, or Absent, the count of a released key. Records
	// that somebody is just changing may be left out.
	//
	// It is bounded work: a page ends early when its outcomes have come to 16 MiB. So more says that there may be more to
	// forget, also if there is none in due. A limit below 1 is once.ErrInvalid; errors.ErrUnsupported: this store cannot do
	// it, and its text says why. once.ErrCorrupt: a record that is past its time is damaged; Forget takes it away.
	Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error)

	// ForgetRecords forgets what Forgettable returned, as Forget does: an outcome past its KeepOutcome is dropped, a key
	// past its KeepKey is new. A record that is not the one that was returned any more (another Owner or Attempt) is left
	// alone; what is Done is final, so these name one outcome. It takes a short transaction, may be interrupted anywhere,
	// and returns how many it changed. Repeating it is harmless.
	ForgetRecords(ctx context.Context, due []once.Record) (int, error)
}

// MaxForgettable is how many bytes of outcomes a page of Forgettable has, or a little more.
const MaxForgettable = 16 << 20

// Reopener is a store in which a person can have work run again that is done.
type Reopener interface {
	// Reopen makes a key that is Done or Expired Absent: free at once. Its attempt stays counted, for keepKey from now, with
	// the reason; its outcome is gone. It does so only if h is the Fence of the attempt that is done: anything else is
	// once.ErrLeaseLost and changes nothing. Repeating it is nil, as long as nobody has claimed the key since.
	//
	// To the owner of h it is as if it had released the key: what it still sends is late, and changes nothing.
	Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error
}

// Reopen records what a person decided: that the work of a Done or Expired record, as it was read, is to run again, and
// why. The next call with its key runs it: so its effect may happen twice. Nothing runs before that.
//
// The key that travels is the same as before. A system that still honours it answers as it did, and does nothing again.
// Steps below the key have records of their own, and stay done. A Lookup is asked about the same key, too: if the next
// attempt crashes, and Lookup still finds the first effect, that is recorded as the outcome, and nothing happens again.
//
// once.ErrLeaseLost: the record has moved on since it was read. errors.ErrUnsupported: the store is no Reopener. A call that
// joins another with its key, which has met the record just before it was reopened, has the old answer still: its Report
// says that it was replayed.
func Reopen(ctx context.Context, s once.Store, rec once.Record, reason string) error {
	r, ok := once.As[Reopener](s)
	switch {
	case reason == "":
		return fmt.Errorf("%w: a decision needs a reason: who says so, and why", once.ErrInvalid)
	case rec.Status != once.Done && rec.Status != once.Expired:
		return fmt.Errorf("%w: a record in status %v is not done: only done and expired ones are reopened", once.ErrInvalid, rec.Status)
	case !ok:
		return fmt.Errorf("%w: %T is no store.Reopener", errors.ErrUnsupported, s)
	}
	fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
	if err := r.Reopen(ctx, fence, keepReopened, name.Reason(reason)); err != nil {
		return err
	}
	s.Options().Tell(ctx, once.Event{Name: observe.Decided, Key: rec.Key, Attempt: rec.Attempt})
	return nil
}

// keepReopened is long, like that of other decisions of people: here the operation's policy is not known.
const keepReopened = 365 * 24 * time.Hour
