package desk

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"
)

// Lane is messages that came and are not settled yet, in the order of their offsets: a queue, or what is read of a
// partition of a log. The mutex of its desks guards it.
type Lane[M any] struct {
	Limit int64 // nothing from this offset on is handed out

	items  []*Item[M]
	fresh  int   // where those begin in items that were not handed out yet
	out    int   // how many are
	came   int   // how many ever came
	next   int64 // the lowest offset that may come
	handed int64 // behind the highest offset that was ever handed out
}

// Item is a message in a lane.
type Item[M any] struct {
	Value   M
	Offset  int64
	Attempt int // how often it was handed out

	lane   *Lane[M]
	number int       // of those that came
	holder *Desk[M]  // that it is out of; nil: it waits
	due    time.Time // it waits until then at least
	gone   error     // what is said to who settles it while it is not out; nil: all is well
}

// NewLane returns a lane without messages.
func NewLane[M any](next int64) *Lane[M] { return &Lane[M]{Limit: math.MaxInt64, next: next} }

// Next is the lowest offset that may come.
func (l *Lane[M]) Next() int64 { return l.next }

// Settled is the offset below which everything is settled.
func (l *Lane[M]) Settled() int64 {
	if len(l.items) == 0 {
		return l.next
	}
	return l.items[0].Offset
}

// Handed is behind the highest offset that was ever handed out.
func (l *Lane[M]) Handed() int64 { return l.handed }

// Out is how many messages are handed out.
func (l *Lane[M]) Out() int { return l.out }

// Held is how many messages were handed out, came back, and wait.
func (l *Lane[M]) Held() int { return l.fresh - l.out }

// Fresh is how many messages came and were not handed out yet.
func (l *Lane[M]) Fresh() int { return len(l.items) - l.fresh }

// Tracked is how many messages came behind the first that is not settled, and with it.
func (l *Lane[M]) Tracked() int {
	if len(l.items) == 0 {
		return 0
	}
	return l.came - l.items[0].number
}

// Items are all messages.
func (l *Lane[M]) Items() iter.Seq[*Item[M]] { return slices.Values(l.items) }

// Add puts a message at the end. Its offset is not below Next.
func (l *Lane[M]) Add(offset int64, m M) *Item[M] {
	it := &Item[M]{Value: m, Offset: offset, lane: l}
	l.put(it)
	return it
}

func (l *Lane[M]) put(it *Item[M]) {
	it.number = l.came
	l.items = append(l.items, it)
	l.next = it.Offset + 1
	l.came++
}

// Rewind lets the lane go on at an offset, with messages that were in it before. What is out is not any more, and
// settling it has the error, or does nothing if that is nil.
func (l *Lane[M]) Rewind(next int64, gone error, with ...*Item[M]) {
	for _, it := range l.items {
		if it.holder != nil {
			it.takeBack(gone)
		}
	}
	l.items, l.fresh, l.next = nil, 0, next
	for _, it := range with {
		it.due = time.Time{}
		l.put(it)
	}
}

// Expire forgets the first messages as long as they are too old, but for those that are out.
func (l *Lane[M]) Expire(old func(*Item[M]) bool) {
	for i := 0; i < len(l.items) && old(l.items[i]); {
		if l.items[i].holder != nil {
			i++
			continue
		}
		l.drop(i)
	}
}

// TakeBack lets everything wait that is out of a desk.
func (l *Lane[M]) TakeBack(d *Desk[M]) {
	for _, it := range l.items[:l.fresh] {
		if it.holder == d {
			it.takeBack(ErrGone)
			it.Return(time.Time{})
		}
	}
}

// first finds the first message that waits and is due. If there is none, it says when there will be one; zero: not by
// itself.
func (l *Lane[M]) first(now time.Time) (it *Item[M], due time.Time) {
	from := 0
	if l.Held() == 0 {
		from = l.fresh
	}
	for _, it := range l.items[from:] {
		switch {
		case it.holder != nil:
		case it.Offset >= l.Limit:
			return nil, due
		case !it.due.After(now):
			return it, time.Time{}
		default:
			due = earlier(due, it.due)
		}
	}
	return nil, due
}

// drop moves what is before the message and not what is behind it: a backlog is long, and what is out is not.
func (l *Lane[M]) drop(i int) {
	copy(l.items[1:i+1], l.items[:i])
	l.items[0] = nil
	l.items = l.items[1:]
	if i < l.fresh {
		l.fresh--
	}
}

// Settle takes a message out of its lane.
func (it *Item[M]) Settle() {
	i, found := slices.BinarySearchFunc(it.lane.items, it.Offset, func(o *Item[M], offset int64) int {
		return cmp.Compare(o.Offset, offset)
	})
	if found {
		it.lane.drop(i)
	}
}

// Return lets a message be handed out again, where it stood, when it is due.
func (it *Item[M]) Return(due time.Time) { it.due = due }

// handOut gives a message to a desk.
func (it *Item[M]) handOut(d *Desk[M]) {
	l := it.lane
	if l.Fresh() > 0 && l.items[l.fresh] == it {
		l.fresh++
	}
	l.out++
	d.out++
	it.Attempt++
	it.holder = d
}

func (it *Item[M]) takeBack(gone error) {
	it.lane.out--
	it.holder.out--
	it.holder, it.gone = nil, gone
}

// earlier is the earlier of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
