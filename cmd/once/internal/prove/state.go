package prove

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

var outgoingStates = []store.OutgoingState{store.Pending, store.Delayed, store.Held, store.Stuck}

// drainStates are those of keys whose work is not over.
var drainStates = []once.Status{once.Running, once.Unknown}

// openStates are what every store can list.
var openStates = []once.Status{once.Running, once.Unknown, once.Parked}

const pageSize = 1000

// look returns records of a selection, at most limit.
func look(ctx context.Context, t *target.Target, q once.RecordQuery, limit int) (found []once.Record, err error) {
	q.Limit = min(limit, pageSize)
	for {
		recs, next, err := t.List(ctx, q)
		t.Damaged = nil
		if err != nil {
			return nil, err
		}
		found = append(found, recs...)
		if next == (once.Key{}) || len(found) >= limit {
			return found[:min(len(found), limit)], nil
		}
		q.After = next
	}
}

const everyRecord = 1 << 30

// records returns the records that were made since a time. Of a store that lists
// only keys that are not done, it returns those, and all is false.
func records(ctx context.Context, t *target.Target, since time.Time) (recs []once.Record, all bool, err error) {
	recs, err = look(ctx, t, once.RecordQuery{}, everyRecord)
	if all = !errors.Is(err, once.ErrInvalid); !all {
		recs, err = look(ctx, t, once.RecordQuery{Status: openStates}, everyRecord)
	}
	return slices.DeleteFunc(recs, func(r once.Record) bool { return r.Created.Before(since) }), all, err
}

// Left is what is still to be done, or waits for a person.
type Left struct {
	Keys   map[string]int `json:"keys"`   // running and unknown
	Outbox map[string]int `json:"outbox"` // by state
	Shelf  map[string]int `json:"shelf"`  // by state
}

// toDo is the number of keys and messages that the program has still to finish.
func (l Left) toDo() int {
	return l.Keys[once.Running.String()] + l.Keys[once.Unknown.String()] +
		l.Outbox[store.Pending.String()] + l.Outbox[store.Delayed.String()] + l.Outbox[store.Held.String()] + l.Shelf[store.Waiting.String()]
}

// String lists what is there, as in "3 messages pending in the outbox".
func (l Left) String() string {
	var all []string
	for _, s := range drainStates {
		if n := l.Keys[s.String()]; n > 0 {
			all = append(all, fmt.Sprintf("%d keys %v", n, s))
		}
	}
	for _, s := range outgoingStates[:3] {
		if n := l.Outbox[s.String()]; n > 0 {
			all = append(all, fmt.Sprintf("%d messages %v in the outbox", n, s))
		}
	}
	if n := l.Shelf[store.Waiting.String()]; n > 0 {
		all = append(all, fmt.Sprintf("%d messages waiting for consumers", n))
	}
	return strings.Join(all, ", ")
}

// pile is what lies in a store since the proof began.
type pile struct {
	open    []once.Record // running, unknown or parked
	out     []store.Outgoing
	shelved []store.Shelved
	left    Left
}

// see looks at what was made since a time and is not finished.
func see(ctx context.Context, t *target.Target, since time.Time) (p pile, err error) {
	p.left = Left{Keys: map[string]int{}, Outbox: map[string]int{}, Shelf: map[string]int{}}
	open, err := look(ctx, t, once.RecordQuery{Status: openStates}, everyRecord)
	if err != nil {
		return p, err
	}
	for _, r := range open {
		if !r.Created.Before(since) {
			p.open = append(p.open, r)
			p.left.Keys[r.Status.String()]++
		}
	}
	if outbox, ok := once.As[store.Relayable](t.Store); ok {
		for _, state := range outgoingStates {
			if err := p.seeOutbox(ctx, outbox, state, since); err != nil {
				return p, err
			}
		}
	}
	if shelf, ok := once.As[inbox.AdminStore](t.Store); ok {
		return p, p.seeShelf(ctx, shelf, since)
	}
	return p, nil
}

func (p *pile) seeOutbox(ctx context.Context, outbox store.Relayable, state store.OutgoingState, since time.Time) error {
	for q := (store.OutgoingQuery{State: state, Limit: pageSize, Bodiless: true}); ; {
		page, err := outbox.Outgoing(ctx, q)
		if err != nil {
			return err
		}
		for _, m := range page {
			q.After = m.Seq
			if !m.Created.Before(since) {
				p.out = append(p.out, m)
				p.left.Outbox[state.String()]++
			}
		}
		if len(page) < q.Limit {
			return nil
		}
	}
}

func (p *pile) seeShelf(ctx context.Context, shelf store.Shelf, since time.Time) error {
	q := store.ShelfQuery{States: []store.ShelfState{store.Waiting, store.Parked}, Limit: pageSize, Bodiless: true}
	for {
		page, err := shelf.Shelved(ctx, q)
		if err != nil {
			return err
		}
		for _, m := range page {
			q.After = m.Seq
			if !m.Created.Before(since) {
				p.shelved = append(p.shelved, m)
			}
		}
		if len(page) < q.Limit {
			break
		}
	}
	p.dropRejected()
	for _, m := range p.shelved {
		p.left.Shelf[m.State.String()]++
	}
	return nil
}

// dropRejected leaves out what a queue of the store keeps of messages that their
// consumer has parked: it is the same decision.
func (p *pile) dropRejected() {
	parked := map[once.Key]bool{}
	for _, m := range p.shelved {
		if m.State == store.Parked {
			parked[m.Unit()] = true
		}
	}
	p.shelved = slices.DeleteFunc(p.shelved, func(m store.Shelved) bool {
		owner, queue := store.QueueOwner(m.Consumer)
		return queue && m.State == store.Parked && parked[once.Key{Operation: owner, ID: m.Key}]
	})
}
