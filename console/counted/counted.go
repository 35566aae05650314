// Package counted makes a bulk change apply to exactly the messages that were
// counted before, for people to say yes to. The console and the command use it.
//
// The compatibility promise is that of package once.
package counted

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/store"
)

// Messages remembers the messages that a first run, a dry run, reads from a store.
// After Begin that store has no others: what came later, or has changed since, is
// not what people were asked about. One goroutine uses it at a time.
type Messages struct {
	// Alike is the ID of a group of failures, as the console and the command show it.
	// Messages outside of it are neither counted nor changed. Reasons that are sealed
	// are opened for that. Default: all messages count.
	Alike string

	// Counted is called as the count goes on, with the number so far. Default: nothing.
	Counted func(n int)

	// Enough is called between the pages that are read for the count, unless the last
	// one was not full. If it returns true, the count ends there, and there may be more
	// messages. Default: it ends with the last message.
	Enough func() bool

	// Next is called before messages are read for a change. It returns how many may be
	// handed out now, from 1 to most, and may wait. Its error ends the change between
	// two messages. Default: most, at once.
	Next func(ctx context.Context, most int) (int, error)

	// Before is called before messages, or their keys, are changed. Its error ends the change, and
	// leaves them as they are. Default: nothing.
	Before func() error

	// Dealt is called as the change goes on, with the number of messages so far that
	// were changed, or had been by somebody else. Default: nothing.
	Dealt func(n int)

	seen  map[sighting]struct{}
	last  int64   // the greatest Seq of them
	alike *string // the text of the group, once one of its messages was read
	full  bool    // the last page that was read for the count was
	begun bool
	dealt int
	moved map[place]struct{} // by the change, or by somebody who was faster

	deciding once.Key // its message is to be changed next
	changed  once.Key // its message was changed last
}

// sighting identifies a version of a message. A changed message has another one.
type sighting struct {
	lane         int // of the outbox, whose lanes have numbers of their own
	seq, version int64
	attempts     int
}

// largestPage is what each store returns at once.
const largestPage = 1000

// Begin ends the count.
func (c *Messages) Begin() { c.begun = true }

// Failure returns what the reasons of the group have in common. ok is false if there
// is no group, or none of its messages was read.
func (c *Messages) Failure() (text string, ok bool) {
	if c.alike == nil {
		return "", false
	}
	return *c.alike, true
}

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

// place is where a message of the outbox is, whatever has changed of it.
type place struct {
	lane int
	seq  int64
	is   store.OutgoingState
}

// Shelved returns messages on the shelf.
func (s shelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	return read(ctx, s.Messages, q.Limit, q.After, func(limit int, after int64) ([]store.Shelved, error) {
		q.Limit, q.After = limit, after
		return s.AdminStore.Shelved(ctx, q)
	}, func(m store.Shelved) sighting { return sighting{0, m.Seq, m.Version, m.Attempts} },
		func(m store.Shelved) string { return store.OpenShelved(&s.Options().Sealing, m, true).Reason })
}

// Outgoing returns messages of the outbox. One that the change itself has moved is
// returned as it is: whoever discards what waits looks whether a relay was faster.
func (s outbox) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if len(q.Lanes) == 1 && q.Limit == 1 {
		if _, ours := s.moved[place{q.Lanes[0], q.After + 1, q.State}]; ours {
			return s.Relayable.Outgoing(ctx, q)
		}
	}
	return read(ctx, s.Messages, q.Limit, q.After, func(limit int, after int64) ([]store.Outgoing, error) {
		q.Limit, q.After = limit, after
		return s.Relayable.Outgoing(ctx, q)
	}, func(m store.Outgoing) sighting { return sighting{m.Lane, m.Seq, m.Changed.UnixMicro(), m.Attempts} },
		func(m store.Outgoing) string { return m.Reason })
}

// Decided returns the shelf with all messages, in which [inbox.Admin] finds those
// that an earlier call has decided about. A count ends between its pages, too.
func (s shelf) Decided() store.Shelf { return &decided{s.AdminStore, s.Messages, false} }

type decided struct {
	store.Shelf
	of   *Messages
	read bool
}

func (d *decided) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if d.read && !d.of.begun && d.of.Enough != nil && d.of.Enough() {
		return nil, nil
	}
	d.read = true
	return d.Shelf.Shelved(ctx, q)
}

// Claim takes the key of a message.
func (s shelf) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.mayDecide(r.Key); err != nil {
		return once.Record{}, err
	}
	return s.AdminStore.Claim(ctx, r)
}

// Settle settles the key of a message.
func (s shelf) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.mayDecide(set.Key); err != nil {
		return err
	}
	return s.AdminStore.Settle(ctx, set)
}

// mayDecide is mayChange for a message whose key is decided about before it is
// changed. One that was changed has its key settled in any case.
func (c *Messages) mayDecide(k once.Key) error {
	if k == c.deciding || k == c.changed {
		return nil
	}
	err := c.mayChange()
	if err == nil {
		c.deciding = k
	}
	return err
}

// Change changes a message on the shelf.
func (s shelf) Change(ctx context.Context, m store.Shelved) error {
	if k := m.Unit(); k == (once.Key{}) || k != s.deciding {
		if err := s.mayChange(); err != nil {
			return err
		}
	}
	s.deciding, s.changed = once.Key{}, m.Unit()
	err := s.AdminStore.Change(ctx, m)
	s.deal(1)
	return err
}

// MoveOutgoing changes messages of the outbox.
func (s outbox) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if err := s.mayChange(); err != nil {
		return 0, err
	}
	if s.moved == nil {
		s.moved = make(map[place]struct{})
	}
	for _, m := range ms {
		s.moved[place{m.Lane, m.Seq, to}] = struct{}{}
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
	as func(M) sighting, reason func(M) string) ([]M, error) {

	if limit <= 0 {
		limit = largestPage
	}
	if c.begun && after < c.last && c.Next != nil {
		var err error
		if limit, err = c.Next(ctx, limit); err != nil {
			return nil, err
		}
	}
	for size := limit; !c.begun || after < c.last; size = largestPage { // where the first are not among them, few may be
		if !c.begun && c.full && c.Enough != nil && c.Enough() {
			return nil, nil
		}
		page, err := next(size, after)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		c.full = len(page) == size
		var kept []M
		for _, m := range page {
			if len(kept) == limit {
				break
			}
			is := as(m)
			after = is.seq
			if c.Alike != "" && !c.isAlike(reason(m)) || !c.counts(is) {
				continue
			}
			kept = append(kept, m)
		}
		if !c.begun && c.Counted != nil {
			c.Counted(len(c.seen))
		}
		if len(kept) > 0 {
			return kept, nil
		}
	}
	return nil, nil
}

// isAlike reports whether a message with a reason is of the group. That is also asked
// of messages that were counted: a store may have two with one sighting. The text of
// the first message is that of all, because it is what people are asked about: whoever
// writes reasons can find two texts with one ID.
func (c *Messages) isAlike(reason string) bool {
	text := alike.Text(reason)
	if c.alike != nil {
		return text == *c.alike
	}
	if alike.ID(text) != c.Alike {
		return false
	}
	c.alike = &text
	return true
}

// counts reports whether a message was counted. Before Begin, it counts it.
func (c *Messages) counts(m sighting) bool {
	if c.begun {
		_, ok := c.seen[m]
		return ok
	}
	if c.seen == nil {
		c.seen = make(map[sighting]struct{})
	}
	c.seen[m] = struct{}{}
	c.last = max(c.last, m.seq)
	return true
}
