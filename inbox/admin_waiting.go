package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// DiscardWaiting gives up messages that wait on the shelf for another attempt, or
// in a queue of package storebroker, selected as for Discard. A queue is the
// Consumer [store.QueueOf]. Like discarded ones, they stay on the shelf for a
// while, and later messages with their ordering key proceed. The key of a message
// becomes done, as rejected, so that copies of it are duplicates, and each message
// is logged.
//
// A message that a process is handling is left as it is, and counted in
// Tally.Taken: it is done soon, or waits again.
func (d Admin) DiscardWaiting(ctx context.Context, q store.ShelfQuery, by Decision) (Tally, error) {
	if err := checkDiscard(q, by); err != nil {
		return Tally{}, err
	}
	return d.decideAll(ctx, q, []store.ShelfState{store.Waiting}, by, &discardWaiting{discardAction: discardAction{d}, by: by})
}

// discardWaiting is the action of DiscardWaiting.
type discardWaiting struct {
	discardAction
	by    Decision
	claim once.Fence // of the key of the message last changed, if it was free
}

// errTaken is the error of a message that a process is handling.
var errTaken = errors.New("inbox: a process is handling the message")

// change claims the key of the message, unless that has an outcome, so that no
// copy of it is handled meanwhile.
func (a *discardWaiting) change(ctx context.Context, m *store.Shelved, n int) (bool, error) {
	if isTaken(m) {
		return false, errTaken
	}
	a.claim = once.Fence{}
	if key, ok := unitOf(m); ok {
		rec, err := a.Store.Get(ctx, key)
		switch {
		case err != nil && !errors.Is(err, once.ErrCorrupt): // the message goes, and its damaged key runs nothing
			return false, err
		case rec.Status == once.Running:
			return false, errTaken
		case err == nil && rec.Status == once.Absent && !a.by.DryRun:
			claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: name.Token()}, Lease: noteLease}
			if rec, err = a.Store.Claim(ctx, claim); err != nil {
				return false, err
			}
			if rec.Status != once.Running || rec.Owner != claim.Owner {
				return false, errTaken
			}
			a.claim = once.Fence{Key: key, Owner: claim.Owner, Attempt: rec.Attempt}
		}
	}
	return a.discardAction.change(ctx, m, n)
}

// unitOf returns the key of a message that is not in a queue: the consumer may use
// another one for that.
func unitOf(m *store.Shelved) (once.Key, bool) {
	_, queue := store.QueueOwner(m.Consumer)
	key := m.Unit()
	return key, !queue && key != once.Key{} && key.Validate() == nil
}

// isTaken reports whether a process is handling a message, or, if it is in a queue
// and its reason cannot be opened, may be.
func isTaken(m *store.Shelved) bool {
	_, queue := store.QueueOwner(m.Consumer)
	return m.Due > 0 && (strings.HasPrefix(m.Reason, neverEnded) || strings.HasPrefix(m.Reason, store.DeliveredTo) ||
		queue && store.IsSealedReason(m.Reason))
}

// settleKey makes the claimed key done, or ends what is known of it as for a
// message that is parked.
func (a *discardWaiting) settleKey(ctx context.Context, m *store.Shelved, why string) error {
	a.Store.Options().Logger.InfoContext(ctx, "inbox: a waiting message was discarded", "message", m.Message.ID, "consumer", m.Consumer,
		"topic", m.Message.Topic, "key", m.Message.OrderingKey, "seq", m.Seq, "reason", why, "was", m.Reason)
	if a.claim == (once.Fence{}) {
		if _, ok := unitOf(m); !ok {
			return nil
		}
		if err := a.discardAction.settleKey(ctx, m, why); !errors.Is(err, once.ErrCorrupt) {
			return err
		}
		return nil
	}
	set := once.Settlement{Fence: a.claim, Status: once.Done, Outcome: once.Outcome{Rejected: true, Omitted: true}, Reason: name.Reason(why),
		KeepOutcome: decidedOutcome, KeepKey: decidedKey}
	set.Outcome, _ = a.Store.Options().Pack(a.claim.Key, nil, set.Outcome)
	if err := a.Store.Settle(ctx, set); err != nil {
		return fmt.Errorf("the message was discarded, but a copy of it may still be handled, because its key could not be made done: %v", err)
	}
	return nil
}

// As long as once.MarkDone keeps them, because the policy of the consumer is not
// known here.
const decidedOutcome, decidedKey = 30 * 24 * time.Hour, 365 * 24 * time.Hour

// unchanged frees the claimed key of a message that could not be changed.
func (a *discardWaiting) unchanged(ctx context.Context) error {
	if a.claim == (once.Fence{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	set := once.Settlement{Fence: a.claim, Status: once.Absent, KeepKey: decidedKey}
	if a.claim.Attempt == 1 { // it has no attempts to be kept
		set.KeepKey = time.Microsecond
	}
	err := a.Store.Settle(ctx, set)
	if errors.Is(err, once.ErrLeaseLost) {
		return nil
	}
	return err
}

func checkDiscard(q store.ShelfQuery, by Decision) error {
	if q.Consumer == "" && len(q.IDs) == 0 && !by.Unopened {
		return invalid("Discard of everything: select messages by Consumer or by IDs")
	}
	return nil
}
