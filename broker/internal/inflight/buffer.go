package inflight

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"
)

// Buffer holds the messages of a queue, or of a partition of a log, that have
// been fetched and not settled. They are in the order of their offsets. The
// mutex of its trackers guards it.
type Buffer[M any] struct {
	Limit int64 // messages from this offset on are not delivered

	items     []*Item[M]
	unread    int   // index of the first item that was never delivered
	inFlight  int   // number of items in flight
	added     int   // number of items ever added
	next      int64 // the lowest offset that may be added
	delivered int64 // one past the highest offset ever delivered
}

// Item is a message in a buffer.
type Item[M any] struct {
	Value   M
	Offset  int64
	Attempt int // how often it was delivered

	buffer   *Buffer[M]
	number   int         // its place among all that were added
	holder   *Tracker[M] // in which it is in flight; nil: it waits
	due      time.Time   // the earliest time of its next delivery
	released error       // the error of settling it after it was released; nil: none
}

// NewBuffer returns an empty buffer. next is the lowest offset that may be
// added.
func NewBuffer[M any](next int64) *Buffer[M] { return &Buffer[M]{Limit: math.MaxInt64, next: next} }

// Next returns the lowest offset that may be added.
func (b *Buffer[M]) Next() int64 { return b.next }

// Settled returns the offset below which everything is settled.
func (b *Buffer[M]) Settled() int64 {
	if len(b.items) == 0 {
		return b.next
	}
	return b.items[0].Offset
}

// Delivered returns one past the highest offset that was ever delivered.
func (b *Buffer[M]) Delivered() int64 { return b.delivered }

// InFlight returns the number of messages in flight.
func (b *Buffer[M]) InFlight() int { return b.inFlight }

// Returned returns the number of messages that were delivered and returned, and
// wait for their next delivery.
func (b *Buffer[M]) Returned() int { return b.unread - b.inFlight }

// Unread returns the number of messages that were never delivered.
func (b *Buffer[M]) Unread() int { return len(b.items) - b.unread }

// Tracked returns the number of messages from the first unsettled one on,
// settled or not.
func (b *Buffer[M]) Tracked() int {
	if len(b.items) == 0 {
		return 0
	}
	return b.added - b.items[0].number
}

// Items returns all messages.
func (b *Buffer[M]) Items() iter.Seq[*Item[M]] { return slices.Values(b.items) }

// Add appends a message. Its offset is not below Next.
func (b *Buffer[M]) Add(offset int64, m M) *Item[M] {
	it := &Item[M]{Value: m, Offset: offset, buffer: b}
	b.append(it)
	return it
}

// Skip notes that there is no message at an offset, which is not below Next.
func (b *Buffer[M]) Skip(offset int64) { b.next = offset + 1 }

func (b *Buffer[M]) append(it *Item[M]) {
	it.number = b.added
	b.items = append(b.items, it)
	b.next = it.Offset + 1
	b.added++
}

// Reset makes the buffer continue at an offset, with items that were in it
// before. It releases the messages in flight: settling them returns the error
// released, or does nothing if that is nil.
func (b *Buffer[M]) Reset(next int64, released error, with ...*Item[M]) {
	for _, it := range b.items {
		if it.holder != nil {
			it.release(released)
		}
	}
	b.items, b.unread, b.next = nil, 0, next
	for _, it := range with {
		it.due = time.Time{}
		b.append(it)
	}
}

// Expire removes messages from the start as long as they are too old. It keeps
// those in flight.
func (b *Buffer[M]) Expire(tooOld func(*Item[M]) bool) {
	for i := 0; i < len(b.items) && tooOld(b.items[i]); {
		if b.items[i].holder != nil {
			i++
			continue
		}
		b.remove(i)
	}
}

// Reclaim returns all messages that are in flight in a tracker. Settling them
// there returns [ErrLost].
func (b *Buffer[M]) Reclaim(t *Tracker[M]) {
	for _, it := range b.items[:b.unread] {
		if it.holder == t {
			it.release(ErrLost)
			it.Return(time.Time{})
		}
	}
}

// first returns the first message that waits and is due. If there is none, it
// returns when one will be due; zero means that none waits for a time.
func (b *Buffer[M]) first(now time.Time) (it *Item[M], due time.Time) {
	from := 0
	if b.Returned() == 0 {
		from = b.unread
	}
	for _, it := range b.items[from:] {
		switch {
		case it.holder != nil:
		case it.Offset >= b.Limit:
			return nil, due
		case !it.due.After(now):
			return it, time.Time{}
		default:
			due = earlier(due, it.due)
		}
	}
	return nil, due
}

// remove removes an item. It moves the items before it, which are few, and not
// the backlog after it.
func (b *Buffer[M]) remove(i int) {
	copy(b.items[1:i+1], b.items[:i])
	b.items[0] = nil
	b.items = b.items[1:]
	if i < b.unread {
		b.unread--
	}
}

// Settle removes a message from its buffer.
func (it *Item[M]) Settle() {
	i, found := slices.BinarySearchFunc(it.buffer.items, it.Offset, func(o *Item[M], offset int64) int {
		return cmp.Compare(o.Offset, offset)
	})
	if found {
		it.buffer.remove(i)
	}
}

// Return lets a message be delivered again in its place, once it is due.
func (it *Item[M]) Return(due time.Time) { it.due = due }

// deliver makes a message in flight in a tracker.
func (it *Item[M]) deliver(t *Tracker[M]) {
	b := it.buffer
	if b.Unread() > 0 && b.items[b.unread] == it {
		b.unread++
	}
	b.inFlight++
	t.inFlight++
	it.Attempt++
	it.holder = t
}

// release ends the flight of a message. Settling it from now on returns the
// error.
func (it *Item[M]) release(released error) {
	it.buffer.inFlight--
	it.holder.inFlight--
	it.holder, it.released = nil, released
}

// earlier returns the earlier of two times. The zero time means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
