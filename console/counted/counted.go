// Package counted makes a bulk change apply to exactly the messages that were
// counted before, for people to say yes to. The console and the command use it.
//
// The compatibility promise is that of package once.
package counted

import (
	"context"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// Messages remembers the messages that a first run, a dry run, reads from a store.
// After Begin that store has no others: what came later, or has changed since, is
// not what people were asked about. One goroutine uses it at a time.
type Messages struct {
	// Counted is called as the count goes on, with the number so far. Default: nothing.
	Counted func(n int)

	// Next is called before messages are read for a change. It returns how many may be
	// handed out now, from 1 to most, and may wait. Its error ends the change between
	// two messages. Default: most, at once.
	Next func(ctx context.Context, most int) (int, error)

	// Before is called before messages are changed. Its error ends the change, and
	// leaves them as they are. Default: nothing.
	Before func() error

	// Dealt is called as the change goes on, with the number of messages so far that
	// were changed, or had been by somebody else. Default: nothing.
	Dealt func(n int)

	seen  map[sighting]struct{}
	last  int64 // the greatest Seq of them
	begun bool
	dealt int
}

// sighting identifies a version of a message. A changed message has another one.
type sighting struct {
	seq, version int64
	attempts     int
}

// largestPage is what each store returns at once.
const largestPage = 1000

// Begin ends the count.
func (c *Messages) Begin() { c.begun = true }

// Shelf returns a shelf with the messages only that were counted.
func (c *Messages) Shelf(s inbox.AdminStore) inbox.AdminStore { return shelf{s, c} }

// Outbox returns an outbox with the messages only that were counted.
func (c *Messages) Outbox(s store.Relayable) store.Relayable { return outbox{s, c} }

type shelf struct {
	inbox.AdminStore
	*Messages
}

type outbox struct {
	store.Relayable
	*Messages
}

// Shelved returns messages on the shelf.
func (s shelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	return read(ctx, s.Messages, q.Limit, q.After, func(limit int, after int64) ([]store.Shelved, error) {
		q.Limit, q.After = limit, after
		return s.AdminStore.Shelved(ctx, q)
	}, func(m store.Shelved) sighting { return sighting{m.Seq, m.Version, m.Attempts} })
}

// Outgoing returns messages of the outbox.
func (s outbox) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	return read(ctx, s.Messages, q.Limit, q.After, func(limit int, after int64) ([]store.Outgoing, error) {
		q.Limit, q.After = limit, after
		return s.Relayable.Outgoing(ctx, q)
	}, func(m store.Outgoing) sighting { return sighting{m.Seq, m.Changed.UnixMicro(), m.Attempts} })
}

// Change changes a message on the shelf.
func (s shelf) Change(ctx context.Context, m store.Shelved) error {
	if err := s.mayChange(); err != nil {
		return err
	}
	err := s.AdminStore.Change(ctx, m)
	s.deal(1)
	return err
}

// MoveOutgoing changes messages of the outbox.
func (s outbox) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if err := s.mayChange(); err != nil {
		return 0, err
	}
	changed, err := s.Relayable.MoveOutgoing(ctx, relay, ms, to)
	s.deal(len(ms))
	return changed, err
}

func (c *Messages) mayChange() error {
	if c.Before == nil {
		return nil
	}
	return c.Before()
}

func (c *Messages) deal(n int) {
	if c.dealt += n; c.Dealt != nil {
		c.Dealt(c.dealt)
	}
}

// read returns the messages of the next page that has some which count. Only the end
// is an empty page.
func read[M any](ctx context.Context, c *Messages, limit int, after int64, next func(limit int, after int64) ([]M, error),
	as func(M) sighting) ([]M, error) {

	if limit <= 0 {
		limit = largestPage
	}
	if !c.begun {
		page, err := next(limit, after)
		for _, m := range page {
			c.count(as(m))
		}
		if err == nil && len(page) > 0 && c.Counted != nil {
			c.Counted(len(c.seen))
		}
		return page, err
	}
	if after < c.last && c.Next != nil {
		var err error
		if limit, err = c.Next(ctx, limit); err != nil {
			return nil, err
		}
	}
	for size := limit; after < c.last; size = largestPage { // where the first are not among them, few may be
		page, err := next(size, after)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		var kept []M
		for _, m := range page {
			is := as(m)
			after = is.seq
			if _, ok := c.seen[is]; ok && len(kept) < limit {
				kept = append(kept, m)
			}
		}
		if len(kept) > 0 {
			return kept, nil
		}
	}
	return nil, nil
}

func (c *Messages) count(m sighting) {
	if c.seen == nil {
		c.seen = make(map[sighting]struct{})
	}
	c.seen[m] = struct{}{}
	c.last = max(c.last, m.seq)
}
