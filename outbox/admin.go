package outbox

import (
	"context"
	"fmt"
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
}

// Tally counts the results of a decision.
type Tally struct {
	Matched int
	Changed int // messages changed, or that a dry run would change; the others were changed concurrently
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
	if q.State != store.Pending && q.State != store.Delayed && q.State != store.Held {
		return Tally{}, invalid("messages that are %v are not waiting to be published: choose Pending, Delayed or Held", q.State)
	}
	return d.decide(ctx, q, by, "parked", func(ms []store.Outgoing) (int, error) {
		return d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck)
	})
}

// Discard gives up Stuck messages. They move to the archive, with the decision
// as their reason. Messages in other states are skipped: Park them first.
func (d Admin) Discard(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	q.State = store.Stuck
	return d.decide(ctx, q, by, "discarded", func(ms []store.Outgoing) (int, error) {
		if _, err := d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck); err != nil { // writes the reason
			return 0, err
		}
		return d.Store.Sent(ctx, [16]byte{}, ms, store.Archive)
	})
}

const decisionPage = 500

// decide carries out a decision page by page. Changed messages are no longer
// selected.
func (d Admin) decide(ctx context.Context, q store.OutgoingQuery, by Decision, verb string,
	do func([]store.Outgoing) (int, error)) (t Tally, err error) {

	if strings.TrimSpace(by.By) == "" || strings.TrimSpace(by.Reason) == "" {
		return t, invalid("a decision needs By and Reason: who decides, and why")
	}
	q.Heads, q.Bodiless = false, true
	limit := q.Limit
	for {
		q.Limit = decisionPage
		if limit > 0 {
			q.Limit = min(decisionPage, limit-t.Matched)
		}
		if q.Limit == 0 {
			return t, nil
		}
		page, err := d.Store.Outgoing(ctx, q)
		if err != nil || len(page) == 0 {
			return t, err
		}
		q.After = page[len(page)-1].Seq
		t.Matched += len(page)
		if by.DryRun {
			t.Changed += len(page)
			continue
		}
		for i := range page {
			page[i].Reason = name.Reason(fmt.Sprintf("%s by %s: %s; was: %s", verb, by.By, by.Reason, page[i].Reason))
		}
		n, err := do(page)
		if t.Changed += n; err != nil {
			return t, err
		}
	}
}
