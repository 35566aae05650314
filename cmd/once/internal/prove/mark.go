package prove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// Operation is that of the key that marks a store for tests. No program uses it.
const Operation = "once-prove"

// markedFor is how long a mark lasts. Then a person decides again, in case the
// database has become something else meanwhile.
const markedFor = 30 * 24 * time.Hour

// Mark says who marked a store, and until when.
type Mark struct {
	By    string    `json:"by"`
	Until time.Time `json:"until"`
}

var marking = &once.Operation[Mark]{Name: Operation, OnUnknown: once.Resend,
	Policy: once.Policy{KeepOutcome: markedFor, KeepKey: markedFor}}

const markID = "mark"

// IsMarked reports whether a store is marked for tests.
func IsMarked(ctx context.Context, t *target.Target) (bool, error) {
	rec, err := t.Store.Get(ctx, marking.For(markID).Key())
	return rec.Status == once.Done, err
}

// SetMark marks a store, and returns the mark: an earlier one, if it has one.
func SetMark(ctx context.Context, t *target.Target, by string) (Mark, error) {
	return once.Do(ctx, t.Store, marking.For(markID), func(ctx context.Context, _ once.Key) (Mark, error) {
		now, err := t.Now(ctx)
		return Mark{By: by, Until: now.Add(markedFor)}, err
	})
}

// Contents says what a store holds besides the mark, or is empty. Of a store that
// lists only keys that are not done, it says that nobody knows.
func Contents(ctx context.Context, t *target.Target) (string, error) {
	recs, err := look(ctx, t, once.RecordQuery{}, 2)
	if errors.Is(err, once.ErrInvalid) {
		return "may hold keys that are done, which it cannot list", nil
	}
	if err != nil && !errors.Is(err, target.ErrLacks) {
		return "", err
	}
	for _, r := range recs {
		if r.Key.Operation != Operation {
			return fmt.Sprintf("holds keys, such as %s of %s", r.Key.ID, r.Key.Operation), nil
		}
	}
	if err != nil {
		return "may hold keys, which it cannot list", nil
	}
	if outbox, ok := once.As[store.Relayable](t.Store); ok {
		for _, state := range outgoingStates {
			ms, err := outbox.Outgoing(ctx, store.OutgoingQuery{State: state, Limit: 1, Bodiless: true})
			if err != nil {
				return "", err
			}
			if len(ms) > 0 {
				return "holds messages in its outbox", nil
			}
		}
	}
	if shelf, ok := once.As[inbox.AdminStore](t.Store); ok {
		ms, err := shelf.Shelved(ctx, store.ShelfQuery{Limit: 1, Bodiless: true})
		if err != nil {
			return "", err
		}
		if len(ms) > 0 {
			return "holds messages of consumers", nil
		}
	}
	return "", nil
}
