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

// Admin resolves messages that consumers have parked, and renames and retires
// consumers. It works on the store alone and needs neither the broker nor the
// consumers. They apply its decisions within seconds.
type Admin struct {
	Store AdminStore
}

// AdminStore is a store that an [Admin] can work on. All transactional stores
// of this project implement it.
type AdminStore interface {
	once.Store
	store.Shelf
	SetPosition(ctx context.Context, p store.Position) error
	Positions(ctx context.Context, consumer string) ([]store.Position, error)
}

// Decision describes who decided, why, and how to carry out the decision.
type Decision struct {
	By     string // required: a person or a ticket
	Reason string // required: why

	// DryRun counts the messages without changing them.
	DryRun bool

	// PerSecond limits the rate of replays. 0 means no limit.
	PerSecond float64

	// NotDone asserts that the effects of messages with an unknown outcome did not
	// happen and can no longer happen. Without it, Replay skips these messages,
	// because another attempt could double the effect. It does not skip a message
	// whose key was resolved meanwhile: the key then determines whether the work
	// runs.
	NotDone bool

	// Unopened selects only messages that cannot be read or opened: those with
	// Unopened set. It needs no other selection, because such a message may have lost
	// its ID.
	Unopened bool
}

// Tally counts the results of a decision.
type Tally struct {
	Matched int // messages that were selected
	Changed int // messages changed, or that a dry run would change
	Ordered int // of those changed, how many have an ordering key, whose later messages may wait for them
	Unknown int // skipped: their outcome is unknown, and NotDone was not set
	Moved   int // skipped: they were changed concurrently
	Taken   int // skipped: a process is handling them
}

func (t *Tally) add(more Tally) {
	t.Matched, t.Changed, t.Ordered = t.Matched+more.Matched, t.Changed+more.Changed, t.Ordered+more.Ordered
	t.Unknown, t.Moved, t.Taken = t.Unknown+more.Unknown, t.Moved+more.Moved, t.Taken+more.Taken
}

// List returns a page of the shelf, in the order of arrival, whatever the state
// of the messages. To get the next page, query after the Seq of the last
// message. What waits in queues (package storebroker) is not in it, unless Consumer
// is that of a queue, by [store.QueueOf].
func (d Admin) List(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	q.NoQueued = q.NoQueued || q.Consumer == ""
	found, err := d.shelf().Shelved(ctx, q)
	for i := range found {
		found[i].History = store.OpenHistory(&d.Store.Options().Sealing, found[i])
	}
	return found, err
}

// shelf returns the shelf of the store, which opens sealed messages.
func (d Admin) shelf() store.Shelf { return sealedShelf{d.Store, &d.Store.Options().Sealing} }

// Replay returns parked messages to their consumer, which handles them under
// their own IDs and in order, with all attempts available again. Steps that are
// done are skipped. Replay may be interrupted and repeated, because the
// messages that it changed are no longer parked. q.Limit is the maximum number
// of replays, not counting what is skipped; 0 means no limit. q.States and q.After
// are ignored.
func (d Admin) Replay(ctx context.Context, q store.ShelfQuery, by Decision) (Tally, error) {
	return d.decide(ctx, q, []store.ShelfState{store.Parked}, by, &replay{Admin: d, by: by})
}

// Discard gives up parked messages, selected by consumer or by ID. They stay on
// the shelf for a while, for reference, and copies of them are treated as
// duplicates. Later messages with their ordering key proceed. For messages that
// are not parked, see DiscardWaiting.
//
// If the process of Discard ends, the same call with the same Decision completes
// it, within a day. Until then the key of one message may be as it was, so that a
// copy of it is tried again, or parked.
func (d Admin) Discard(ctx context.Context, q store.ShelfQuery, by Decision) (Tally, error) {
	if err := checkDiscard(q, by); err != nil {
		return Tally{}, err
	}
	return d.discard(ctx, q, []store.ShelfState{store.Parked}, by)
}

// discard completes what an earlier call with the same Decision has begun, and
// then discards messages in any of several states.
func (d Admin) discard(ctx context.Context, q store.ShelfQuery, states []store.ShelfState, by Decision) (Tally, error) {
	a := &discardAction{d}
	before, err := a.complete(ctx, q, by)
	if err != nil || q.Limit > 0 && before.Changed >= q.Limit {
		return before, err
	}
	q.Limit = max(q.Limit-before.Changed, 0)
	t, err := d.decide(ctx, q, states, by, a)
	t.add(before)
	return t, err
}

// SetPosition moves a consumer to another position of a log, at once. Use it
// after a log was recreated, or to handle a part of it again, which doubles
// effects unless the handlers allow for it. The zero Offset is valid: the next
// message is then 1.
func (d Admin) SetPosition(ctx context.Context, p store.Position) error {
	if p.Consumer == "" || p.Partition == "" || p.Log == "" {
		return invalid("a position needs a Consumer, a Partition and a Log: see Positions for what they are now")
	}
	return d.Store.SetPosition(ctx, p)
}

// Positions returns the positions of a consumer. Those with Damaged set cannot be
// read, and their consumer waits there until SetPosition.
func (d Admin) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	return d.Store.Positions(ctx, consumer)
}

func checkDecision(q store.ShelfQuery, by Decision) error {
	switch {
	case by.By == "" || by.Reason == "":
		return errAnonymous
	case by.PerSecond < 0:
		return invalid("PerSecond is negative")
	case q.Ready:
		return invalid("messages that are Ready are not parked: leave Ready out")
	}
	return nil
}

// action is what a decision does to each message.
type action interface {
	// change changes a message before it is written. It returns false to skip a
	// message of unknown outcome. n is the number of messages changed before.
	change(ctx context.Context, m *store.Shelved, n int) (ok bool, err error)

	// settleKey settles the key of the message last changed, after that was
	// written.
	settleKey(ctx context.Context, m *store.Shelved, why string) error

	// unwritten is called instead if the message last changed could not be written. It
	// returns err, or nil if the decision holds nevertheless.
	unwritten(ctx context.Context, m *store.Shelved, err error) error
}

// replay is the action of Replay.
type replay struct {
	Admin
	by  Decision
	key replayKey // of the message last changed
}

// replayKey says what Replay does about the key of a message.
type replayKey int

const (
	freeKey  replayKey = iota // release it if it is parked
	leaveKey                  // it was resolved before, and what it is now is not this decision
)

// keyFreeAfter is how long a replayed message is left on the shelf, so that its
// key is free by then.
const keyFreeAfter = 500 * time.Millisecond

func (a *replay) change(ctx context.Context, m *store.Shelved, n int) (bool, error) {
	a.key = freeKey
	if strings.HasPrefix(m.Reason, unknownOutcome) && !a.by.NotDone {
		resolved, err := a.isResolved(ctx, m)
		if err != nil || !resolved {
			return false, err
		}
		a.key = leaveKey
	}
	m.State, m.Attempts, m.Due = store.Waiting, 0, keyFreeAfter
	if a.by.PerSecond > 0 {
		m.Due += time.Duration(float64(n) / a.by.PerSecond * float64(time.Second))
	}
	return true, nil
}

// isResolved reports whether the key of a message has a known outcome.
func (a *replay) isResolved(ctx context.Context, m *store.Shelved) (bool, error) {
	if m.Key == "" {
		return false, nil
	}
	rec, err := a.Store.Get(ctx, once.Key{Operation: m.Consumer, ID: m.Key})
	return rec.Status == once.Done || rec.Status == once.Expired || rec.Status == once.Absent, err
}

func (a *replay) settleKey(ctx context.Context, m *store.Shelved, why string) error {
	if a.key == leaveKey {
		return nil
	}
	return a.markKey(ctx, m, once.Settlement{Status: once.Absent, Reason: why}, a.by.NotDone)
}

func (*replay) unwritten(_ context.Context, _ *store.Shelved, err error) error { return err }

// discardAction is the action of Discard.
type discardAction struct{ Admin }

func (*discardAction) unwritten(_ context.Context, _ *store.Shelved, err error) error { return err }

func (a *discardAction) change(_ context.Context, m *store.Shelved, _ int) (bool, error) {
	m.State, m.Due = store.Discarded, 0
	return true, nil
}

// settleKey records a rejection as the outcome, if the key is parked, or free
// because it was not parked yet: otherwise a copy of the message would run.
func (a *discardAction) settleKey(ctx context.Context, m *store.Shelved, why string) error {
	key, ok := unitOf(m)
	for tries := 0; ok && tries < 3; tries++ {
		rec, err := a.Store.Get(ctx, key)
		if errors.Is(err, once.ErrCorrupt) { // a damaged key runs nothing
			break
		}
		if err != nil {
			return err
		}
		if rec.Status != once.Absent {
			break
		}
		err = a.reject(ctx, key, parkOwner(m, rec.Attempt), why) // if the process ends here, complete recognises the claim
		if !errors.Is(err, errTaken) && !errors.Is(err, once.ErrLeaseLost) {
			return err
		} // a process has claimed it meanwhile, to park it or to handle a copy
	}
	return a.markKey(ctx, m, once.Settlement{Status: once.Done, Outcome: once.Outcome{Rejected: true, Omitted: true}, Reason: why}, true)
}

// reject makes a free key done, as rejected.
func (a *discardAction) reject(ctx context.Context, key once.Key, owner [16]byte, why string) error {
	rec, err := a.Store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: key, Owner: owner}, Lease: noteLease})
	switch {
	case err != nil:
		return err
	case rec.Status != once.Running || rec.Owner != owner:
		return errTaken
	}
	set := once.Settlement{Fence: once.Fence{Key: key, Owner: owner, Attempt: rec.Attempt}, Status: once.Done,
		Outcome: once.Outcome{Rejected: true, Omitted: true}, Reason: name.Reason(why), KeepOutcome: decidedOutcome, KeepKey: decidedKey}
	set.Outcome, _ = a.Store.Options().Pack(key, nil, set.Outcome)
	return a.Store.Settle(ctx, set)
}

// decide carries out an action on all selected messages in any of several states,
// page by page: first on the message, which another person may have changed
// meanwhile, and then on its key.
func (d Admin) decide(ctx context.Context, q store.ShelfQuery, states []store.ShelfState, by Decision, a action) (t Tally, err error) {
	if err := checkDecision(q, by); err != nil {
		return t, err
	}
	limit := q.Limit
	q.States, q.After, q.Bodiless = states, 0, !by.Unopened
	damaged := 0 // what the page begins with that is no message, such as an index that cannot be read
	for {
		q.Limit = 0
		switch {
		case limit > 0 && t.Changed >= limit:
			return t, nil
		case limit > 0:
			q.Limit = min(limit-t.Changed+damaged, largestPage)
		case damaged > 0:
			q.Limit = min(damaged+largestPage/10, largestPage)
		}
		page, err := d.shelf().Shelved(ctx, q)
		if err != nil || len(page) == 0 {
			return t, err
		}
		if page[len(page)-1].Seq <= q.After { // all of it is damage beside the messages
			if len(page) == damaged {
				return t, nil
			}
			damaged = len(page)
			continue
		}
		damaged = 0
		for _, m := range page {
			if limit > 0 && t.Changed == limit { // the page has fewer damaged ones than that before
				return t, nil
			}
			if m.Seq <= q.After || by.Unopened && m.Unopened == nil {
				q.After = max(q.After, m.Seq)
				continue
			}
			q.After = m.Seq
			t.Matched++
			was := m.State
			ok, err := a.change(ctx, &m, t.Changed)
			if err == nil && !ok {
				t.Unknown++
				continue
			}
			if err == nil && !by.DryRun {
				if err = d.write(ctx, m, was, by); err == nil {
					err = a.settleKey(ctx, &m, why(m.State, by))
				} else {
					err = a.unwritten(ctx, &m, err)
				}
			}
			switch {
			case errors.Is(err, errTaken):
				t.Taken++
			case errors.Is(err, once.ErrLeaseLost):
				t.Moved++
			case err != nil:
				return t, fmt.Errorf("at message %q of %s: %w", m.Message.ID, m.Consumer, err)
			default:
				t.Changed++
				if m.Message.OrderingKey != "" {
					t.Ordered++
				}
			}
		}
	}
}

const largestPage = 1000

var verbs = map[store.ShelfState]string{store.Waiting: "replayed", store.Discarded: "discarded"}

// why is the reason of a decision.
func why(state store.ShelfState, by Decision) string {
	return verbs[state] + " by " + by.By + ": " + by.Reason
}

// said is how the History of a message tells about a decision.
func said(state store.ShelfState, by Decision) string {
	return verbs[state] + " by " + oneLine(by.By, name.Limit) + ": " + oneLine(by.Reason, maxHistory/16)
}

func (d Admin) write(ctx context.Context, m store.Shelved, was store.ShelfState, by Decision) error {
	before := m
	before.Reason = oneLine(m.Reason, maxHistory/4) // sealing makes the text longer
	line := fmt.Sprintf("%s %s (it was %v: %s)", time.Now().UTC().Format(time.RFC3339), said(m.State, by), was, store.SealReason(&d.Store.Options().Sealing, before).Reason)
	if strings.HasPrefix(m.Reason, unknownOutcome) && m.State == store.Waiting && by.NotDone {
		line += ", and says that it did not happen"
	}
	m.History = withLine(m.History, line)
	return d.shelf().Change(ctx, m)
}

const (
	maxHistory = 64 << 10 // stores reject a longer History
	leftOut    = "(older lines were left out)\n"
)

// withLine adds a line to a History, and drops its oldest lines if it is full.
func withLine(history, line string) string {
	if history == "" {
		return line
	}
	history += "\n" + line
	if len(history) <= maxHistory {
		return history
	}
	for history = strings.TrimPrefix(history, leftOut); len(leftOut)+len(history) > maxHistory; {
		_, history, _ = strings.Cut(history, "\n")
	}
	return leftOut + history
}

func oneLine(s string, limit int) string {
	return name.Line(strings.Join(strings.Fields(s), " "), limit)
}

// markKey settles the key of a message if it is parked with the message, or a
// process was going to park it; and if unknown is set, also if its outcome is
// unknown. A copy may have been attempted after the message was parked.
func (d Admin) markKey(ctx context.Context, m *store.Shelved, set once.Settlement, unknown bool) error {
	if m.Key == "" {
		return nil
	}
	key := once.Key{Operation: m.Consumer, ID: m.Key}
	rec, err := d.Store.Get(ctx, key)
	if err != nil {
		return err
	}
	switch rec.Key = key; {
	case rec.Status == once.Running && isParking(rec, m):
		err = endParking(ctx, d.Store, rec, set)
	case rec.Status != once.Parked && rec.Status != once.Unknown, !unknown && !isParking(rec, m):
		return nil
	case set.Status == once.Done:
		err = once.MarkDone(ctx, d.Store, rec, set.Outcome, set.Reason)
	default:
		err = once.MarkNotDone(ctx, d.Store, rec, set.Reason)
	}
	if errors.Is(err, once.ErrLeaseLost) { // another person has decided about the key
		return nil
	}
	return err
}

// completeWithin is how long a Discard that was interrupted is looked for. It also
// bounds how many keys are read for that.
const completeWithin = 24 * time.Hour

// complete ends the discards of an earlier call with the same Decision whose
// process ended after it had changed the message, and before it had settled the
// key. Their messages are no longer parked, so only their History tells of them.
func (a *discardAction) complete(ctx context.Context, q store.ShelfQuery, by Decision) (t Tally, err error) {
	all := a.shelf()
	if some, ok := a.Store.(decidedShelf); ok {
		all = sealedShelf{some.Decided(), &a.Store.Options().Sealing}
	}
	limit, begins := q.Limit, said(store.Discarded, by)+" (it was "
	q.States, q.After, q.Bodiless, q.Limit = []store.ShelfState{store.Discarded}, 0, !by.Unopened, largestPage
	for limit <= 0 || t.Changed < limit {
		page, err := all.Shelved(ctx, q)
		if err != nil || len(page) == 0 || page[len(page)-1].Seq <= q.After {
			return t, err
		}
		for _, m := range page {
			if m.Seq <= q.After || by.Unopened && m.Unopened == nil {
				q.After = max(q.After, m.Seq)
				continue
			}
			q.After = m.Seq
			if time.Since(m.Updated) > completeWithin {
				continue
			}
			last := m.History[strings.LastIndex(m.History, "\n")+1:]
			if _, what, _ := strings.Cut(last, " "); !strings.HasPrefix(what, begins) {
				continue
			}
			open, err := a.isOpen(ctx, &m)
			if err == nil && open && !by.DryRun {
				err = a.settleKey(ctx, &m, why(m.State, by))
			}
			if err != nil {
				return t, fmt.Errorf("at message %q of %s: %w", m.Message.ID, m.Consumer, err)
			}
			if open {
				t.add(Tally{Matched: 1, Changed: 1})
				if m.Message.OrderingKey != "" {
					t.Ordered++
				}
			}
			if limit > 0 && t.Changed == limit {
				return t, nil
			}
		}
	}
	return t, nil
}

// decidedShelf is a store that shows only some of its messages, such as those that a
// person has said yes to. Decided returns a shelf with all.
type decidedShelf interface{ Decided() store.Shelf }

// isOpen reports whether the key of a message that was discarded has no outcome,
// nothing runs by it, and nothing has happened to it since. A copy may have been
// tried meanwhile, or another person may have freed the key.
func (a *discardAction) isOpen(ctx context.Context, m *store.Shelved) (bool, error) {
	key, ok := unitOf(m)
	if !ok {
		return false, nil
	}
	rec, err := a.Store.Get(ctx, key)
	if errors.Is(err, once.ErrCorrupt) {
		return false, nil
	}
	if err != nil || isParking(rec, m) {
		return err == nil, err
	}
	open := rec.Status == once.Absent || rec.Status == once.Parked || rec.Status == once.Unknown
	return open && !rec.Updated.After(m.Updated), nil
}
