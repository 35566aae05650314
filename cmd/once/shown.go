package main

import (
	"context"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// shown counts the messages of a store in a first run, for people to say yes to. Once that is over, the store has no
// others: what came later, or has moved on since, is not what they were asked about.
type shown struct {
	seen    map[sighting]bool
	counted bool

	line  *progress
	total int            // what there is to do
	dealt map[int64]bool // what was done
}

// sighting identifies a version of a message. A changed message has another one.
type sighting struct {
	seq, version int64
	attempts     int
}

func newShown(line *progress) *shown {
	return &shown{seen: map[sighting]bool{}, line: line, dealt: map[int64]bool{}}
}

// shownOutbox is an outbox with the messages that were counted.
type shownOutbox struct {
	store.Relayable
	*shown
}

// shownShelf is a shelf with the messages that were counted.
type shownShelf struct {
	inbox.AdminStore
	*shown
}

// Outgoing returns messages of the outbox. After the count it returns only
// messages that were counted.
func (s shownOutbox) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	for {
		page, err := s.Relayable.Outgoing(ctx, q)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		q.After = page[len(page)-1].Seq
		page = only(s.shown, page, func(m store.Outgoing) sighting { return sighting{m.Seq, m.Changed.UnixMicro(), m.Attempts} })
		if len(page) > 0 {
			return page, nil
		}
	}
}

// Shelved returns messages on the shelf. After the count it returns only messages
// that were counted.
func (s shownShelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	for {
		page, err := s.AdminStore.Shelved(ctx, q)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		q.After = page[len(page)-1].Seq
		page = only(s.shown, page, func(m store.Shelved) sighting { return sighting{m.Seq, m.Version, m.Attempts} })
		if len(page) > 0 {
			return page, nil
		}
	}
}

// begin ends the count.
func (s *shown) begin(total int) {
	s.counted, s.total = true, total
	s.line.end()
}

// Change records the change of a message on the shelf.
func (s shownShelf) Change(ctx context.Context, m store.Shelved) error {
	err := s.AdminStore.Change(ctx, m)
	s.dealt[m.Seq] = true
	s.line.say("%d of %s", len(s.dealt), show.Count(s.total, "message", "messages"))
	return err
}

// MoveOutgoing records the change of messages in the outbox.
func (s shownOutbox) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	changed, err := s.Relayable.MoveOutgoing(ctx, relay, ms, to)
	for _, m := range ms {
		s.dealt[m.Seq] = true
	}
	s.line.say("%d of %s", len(s.dealt), show.Count(s.total, "message", "messages"))
	return changed, err
}

func only[M any](s *shown, page []M, as func(M) sighting) (kept []M) {
	for _, m := range page {
		if !s.counted {
			s.seen[as(m)] = true
		}
		if s.seen[as(m)] {
			kept = append(kept, m)
		}
	}
	if !s.counted {
		s.line.say("%s counted", show.Count(len(s.seen), "message", "messages"))
	}
	return kept
}
