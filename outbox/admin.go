package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Admin is where a person deals with messages that are Stuck, or should not go out. Its work is in the store alone, so it
// needs neither the broker nor the relays: those take up what it has decided within seconds.
type Admin struct {
	Store store.Relayable
}

// Decision says who decides what.
type Decision struct {
	By     string // mandatory: a person, or a ticket
	Reason string // mandatory: why
	DryRun bool   // changes nothing, and counts
}

// Tally is what a decision has come to.
type Tally struct {
	Matched int
	Changed int // or would be, in a dry run; what is missing was changed by somebody else meanwhile
}

// List returns a page of the messages in one state, opened where they are sealed. The next page is behind the Seq of the
// last of them.
func (d Admin) List(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	found, err := d.Store.Outgoing(ctx, q)
	for i := range found {
		if q.Bodiless {
			break
		}
		m := &found[i]
		m.Message, m.Unopened = store.OpenOutgoing(&d.Store.Options().Sealing, m.Message)
	}
	return found, err
}

// Replay has Stuck messages published after all, under their own IDs, with all attempts before them. A Limit is the most
// that are replayed, 0 is no limit; the State and Heads of q are not used. It can be interrupted and repeated.
func (d Admin) Replay(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	q.State = store.Stuck
	return d.decide(ctx, q, by, "replayed", func(ms []store.Outgoing) (int, error) {
		for i := range ms {
			ms[i].Attempts = 0
		}
		return d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Held)
	})
}

// Park makes messages Stuck that are Pending, Delayed or Held: that is the State of q. One that a relay is just sending may
// go out all the same.
func (d Admin) Park(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	if q.State != store.Pending && q.State != store.Delayed && q.State != store.Held {
		return Tally{}, invalid("messages that are %v are not waiting to be published: choose Pending, Delayed or Held", q.State)
	}
	return d.decide(ctx, q, by, "parked", func(ms []store.Outgoing) (int, error) {
		return d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck)
	})
}

// Discard gives Stuck messages up. They go to the archive, with the decision as their reason. Others are passed over:
// Park them first.
func (d Admin) Discard(ctx context.Context, q store.OutgoingQuery, by Decision) (Tally, error) {
	q.State = store.Stuck
	return d.decide(ctx, q, by, "discarded", func(ms []store.Outgoing) (int, error) {
		if _, err := d.Store.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck); err != nil { // writes the reason
			return 0, err
		}
		return d.Store.Sent(ctx, [16]byte{}, ms, store.Archive)
	})
}

const deskPage = 500

// decide goes through what is selected, in pages. What was changed is not selected any more.
func (d Admin) decide(ctx context.Context, q store.OutgoingQuery, by Decision, verb string,
	do func([]store.Outgoing) (int, error)) (t Tally, err error) {

	if strings.TrimSpace(by.By) == "" || strings.TrimSpace(by.Reason) == "" {
		return t, invalid("a decision needs By and Reason: who decides, and why")
	}
	q.Heads, q.Bodiless = false, true
	limit := q.Limit
	for {
		q.Limit = deskPage
		if limit > 0 {
			q.Limit = min(deskPage, limit-t.Matched)
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
