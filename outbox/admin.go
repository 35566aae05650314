package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Admin resolves messages that are Stuck or should not be published. It works
// on the store alone and needs neither the broker nor the relays. They stop
// what it parks at once, and publish what it replays within seconds.
type Admin struct {
	Store store.Relayable
}

// Decision describes who decided, and why.
type Decision struct {
	By     string // required: a person or a ticket
	Reason string // required: why
	DryRun bool   // count the messages without changing them

	// Unopened selects only messages that cannot be read or opened: those with
	// Unopened set. It needs no other selection, because such a message may have lost
	// its ID and topic.
	Unopened bool
}

// Tally counts the results of a decision.
type Tally struct {
	Matched int
	Changed int // messages changed, or that a dry run would change; the others were changed concurrently
	Ordered int // of those changed, how many have an ordering key, whose later messages may wait for them

	// Sending is how many of those changed were Pending or Held, so that a relay that
	// had read them before may still publish them. It is 0 for decisions that publish.
	Sending int
}

// List returns a page of messages in one state, with sealed ones opened. To get
// the next page, query after the Seq of the last message.
func (d Admin) List(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	found, err := d.Store.Outgoing(ctx, q)
	for i := range found {
		if q.Bodiless {
			break
		}
		m := &found[i]
		if m.Unopened != nil { // its row is damaged
			continue
		}
		m.Message, m.Unopened = store.OpenOutgoing(&d.Store.Options().Sealing, m.Message)
	}
	return found, err
}

// Replay publishes Stuck messages after all, under their own IDs, with all
// attempts available again. q.Limit is the maximum number of replays; 0 means
// no limit. q.State and q.Heads are ignored. Replay may be interrupted and
// repeated.
func (d Admin) Replay(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	q.State = store.Stuck
	return d.decide(ctx, q, by, "replayed", func(ms []store.Outgoing) (int, error) {
		for i := range ms {
			ms[i].Attempts = 0
		}
		return d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Held)
	})
}

// Park makes messages Stuck that are Pending, Delayed or Held, as q.State
// selects. A message that a relay is sending at that moment may still be
// published. With HoldOrder, later messages of its ordering key wait from then on,
// also those that are put after it.
func (d Admin) Park(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	if err := checkWaiting(q.State); err != nil {
		return Tally{}, err
	}
	return d.decide(ctx, q, by, "parked", func(ms []store.Outgoing) (int, error) {
		return d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck)
	})
}

// Discard gives up Stuck messages. They move to the archive, with the decision
// as their reason. Later messages with their ordering keys proceed. Messages in
// other states are skipped: see DiscardWaiting.
func (d Admin) Discard(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	q.State = store.Stuck
	return d.decide(ctx, q, by, "discarded", func(ms []store.Outgoing) (int, error) {
		if _, err := d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck); err != nil { // writes the reason
			return 0, err
		}
		return d.Store.Sent(ctx, [16]byte{}, ms, store.Archive)
	})
}

// DiscardWaiting gives up messages that are Pending, Delayed or Held, as q.State
// selects: it is Park and Discard in one, and logs each message. One that a relay
// or a person was faster with is left as it is. A message that a relay is sending
// at that moment may still be published: see Tally.Sending.
func (d Admin) DiscardWaiting(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	if err := checkWaiting(q.State); err != nil {
		return Tally{}, err
	}
	return d.decide(ctx, q, by, "discarded", func(ms []store.Outgoing) (int, error) {
		n, err := d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck)
		if err == nil && n < len(ms) {
			ms, err = d.withReason(ctx, ms)
		}
		if err != nil || len(ms) == 0 {
			return 0, err
		}
		for i := range ms {
			ms[i].State = store.Stuck
		}
		n, err = d.Store.Sent(ctx, [16]byte{}, ms, store.Archive)
		if err == nil {
			d.logDiscarded(ctx, q.State, ms)
		}
		return n, err
	})
}

func checkWaiting(state store.OutgoingState) error {
	if state != store.Pending && state != store.Delayed && state != store.Held {
		return invalid("messages that are %v are not waiting to be published: choose Pending, Delayed or Held", state)
	}
	return nil
}

// withReason returns those messages that are Stuck for the reason that they have
// here. The others were changed by a relay or by another person, whose decision
// stands.
func (d Admin) withReason(ctx context.Context, ms []store.Outgoing) (ours []store.Outgoing, err error) {
	for _, m := range ms {
		q := store.OutgoingQuery{State: store.Stuck, Lanes: []int{m.Lane}, After: m.Seq - 1, Limit: 1, Bodiless: true}
		is, err := d.Store.Outgoing(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(is) > 0 && is[0].Seq == m.Seq && is[0].Reason == m.Reason {
			ours = append(ours, m)
		}
	}
	return ours, nil
}

// logDiscarded keeps what is known of discarded messages, because not every store
// has an archive.
func (d Admin) logDiscarded(ctx context.Context, was store.OutgoingState, ms []store.Outgoing) {
	for _, m := range ms {
		d.Store.Options().Logger.InfoContext(ctx, "outbox: a waiting message was discarded", "message", m.Message.ID, "topic", m.Message.Topic,
			"key", m.Message.OrderingKey, "cause", m.Cause, "seq", m.Seq, "state", was, "reason", m.Reason)
	}
}

const (
	decisionPage  = 500
	decisionBytes = 16 << 20 // of bodies, if they are read
)

// decide carries out a decision page by page. Changed messages are no longer
// selected.
func (d Admin) decide(ctx context.Context, q store.OutgoingQuery, by Decision, verb string,
	do func([]store.Outgoing) (int, error)) (t Tally, err error) {

	if strings.TrimSpace(by.By) == "" || strings.TrimSpace(by.Reason) == "" {
		return t, invalid("a decision needs By and Reason: who decides, and why")
	}
	q.Heads, q.Bodiless = false, !by.Unopened
	if by.Unopened {
		q.MaxBytes = decisionBytes
	}
	limit := q.Limit
	for {
		q.Limit = decisionPage
		if limit > 0 {
			q.Limit = min(decisionPage, limit-t.Matched)
		}
		if q.Limit == 0 {
			return t, nil
		}
		page, err := d.List(ctx, q)
		if err != nil || len(page) == 0 {
			return t, err
		}
		q.After = page[len(page)-1].Seq
		if by.Unopened {
			page = slices.DeleteFunc(page, func(m store.Outgoing) bool { return m.Unopened == nil })
		}
		if len(page) == 0 {
			continue
		}
		t.Matched += len(page)
		if by.DryRun {
			t.count(page, len(page), q.State)
			continue
		}
		for i := range page {
			page[i].Reason = name.Reason(fmt.Sprintf("%s by %s: %s; was: %s", verb, by.By, by.Reason, page[i].Reason))
		}
		n, err := do(page)
		if t.count(page, n, q.State); err != nil {
			return t, err
		}
	}
}

// count adds n changed messages of a page that was read in a state.
func (t *Tally) count(page []store.Outgoing, n int, state store.OutgoingState) {
	ordered := 0
	for i := range page {
		if hasOrder(page[i]) {
			ordered++
		}
	}
	t.Changed, t.Ordered = t.Changed+n, t.Ordered+min(n, ordered)
	if state == store.Pending || state == store.Held {
		t.Sending += n
	}
}
