package inbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
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
// Tally.Taken: it is done soon, or waits again. If the process begins at that
// moment, the message is given up, and the step of a [DoThenTx] may be taken.
//
// If the process of DiscardWaiting ends, the same call with the same Decision
// completes it. Until then the message may wait, with its key done or unknown: its
// consumer takes it for a duplicate, or does what it does about an unknown outcome.
func (d Admin) DiscardWaiting(ctx context.Context, q store.ShelfQuery, by Decision) (Tally, error) {
	if err := checkDiscard(q, by); err != nil {
		return Tally{}, err
	}
	return d.decide(ctx, q, []store.ShelfState{store.Waiting}, by, &discardWaiting{discardAction: discardAction{d}, by: by})
}

// discardWaiting is the action of DiscardWaiting. It decides about the key first,
// and then about the message: whoever has the key decides which of them runs. If
// the process ends in between, the key is unknown or done, and the message waits,
// so that the same call finds it again and completes the decision.
type discardWaiting struct {
	discardAction
	by      Decision
	decided bool // the key of the message last changed is done by this decision
}

// errTaken is the error of a message that a process is handling.
var errTaken = errors.New("inbox: a process is handling the message")

// change makes the key of the message done, unless it has an outcome.
func (a *discardWaiting) change(ctx context.Context, m *store.Shelved, n int) (bool, error) {
	if isTaken(m) {
		return false, errTaken
	}
	a.decided = false
	if key, ok := unitOf(m); ok {
		if err := a.decideKey(ctx, key, m); err != nil {
			return false, err
		}
	}
	return a.discardAction.change(ctx, m, n)
}

func (a *discardWaiting) decideKey(ctx context.Context, key once.Key, m *store.Shelved) error {
	// A repeated call takes over the claim that the first one left.
	owner := name.Digest("discard", m.Consumer, strconv.FormatInt(m.Seq, 10), strconv.FormatInt(m.Version, 10),
		m.Message.ID, a.by.By, a.by.Reason)
	rec, err := a.Store.Get(ctx, key)
	switch {
	case errors.Is(err, once.ErrCorrupt): // the message goes, and its damaged key runs nothing
		return nil
	case err != nil:
		return err
	case rec.Status == once.Running && rec.Owner != owner:
		return errTaken
	case a.by.DryRun:
		return nil
	case rec.Status == once.Unknown, rec.Status == once.Parked:
		rec.Key = key
		err = once.MarkDone(ctx, a.Store, rec, once.Outcome{Rejected: true, Omitted: true}, why(store.Discarded, a.by))
	case rec.Status == once.Running, rec.Status == once.Absent:
		err = a.reject(ctx, key, owner, why(store.Discarded, a.by))
	default: // it has an outcome
		return nil
	}
	if errors.Is(err, once.ErrLeaseLost) {
		return errTaken
	}
	a.decided = err == nil
	return err
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

// settleKey logs the decision. The key was settled before.
func (a *discardWaiting) settleKey(ctx context.Context, m *store.Shelved, why string) error {
	a.Store.Options().Logger.InfoContext(ctx, "inbox: a waiting message was discarded", "message", m.Message.ID, "consumer", m.Consumer,
		"topic", m.Message.Topic, "key", m.Message.OrderingKey, "seq", m.Seq, "reason", why, "was", m.Reason)
	return nil
}

// As long as once.MarkDone keeps them, because the policy of the consumer is not
// known here.
const decidedOutcome, decidedKey = 30 * 24 * time.Hour, 365 * 24 * time.Hour

// unwritten takes a message for changed that a process has begun to try meanwhile,
// if the decision has its key: the process finds it done. If the process has parked
// it instead, the decision is about that, too.
func (a *discardWaiting) unwritten(ctx context.Context, m *store.Shelved, err error) error {
	if !a.decided || !errors.Is(err, once.ErrLeaseLost) {
		return err
	}
	now, readErr := a.Store.Shelved(ctx, store.ShelfQuery{Consumer: m.Consumer, IDs: []string{m.Message.ID}, Bodiless: true})
	if readErr != nil { // not that it has moved: its key is done
		return readErr
	}
	at := slices.IndexFunc(now, func(n store.Shelved) bool { return n.Seq == m.Seq && n.State == store.Parked })
	if at >= 0 {
		*m = now[at]
		if _, err := a.discardAction.change(ctx, m, 0); err != nil {
			return err
		}
		if err := a.write(ctx, *m, store.Parked, a.by); err != nil {
			return err
		}
	}
	return a.settleKey(ctx, m, why(store.Discarded, a.by))
}

func checkDiscard(q store.ShelfQuery, by Decision) error {
	if q.Consumer == "" && len(q.IDs) == 0 && !by.Unopened {
		return invalid("Discard of everything: select messages by Consumer or by IDs")
	}
	return checkDecision(q, by)
}
