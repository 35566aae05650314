package lease

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How many leases are extended at a time, until the store shows what it can do,
// and at least.
const (
	firstCalls = 32
	leastCalls = 4
)

// longCall is how long a call has its place, unless the store needs longer.
const longCall = time.Second / 2

// Queue lets the leases of one store take turns to be extended, so that a store
// that is slow keeps as many as it can: the lease that ends first has the next
// turn, and one that would end before the reply waits until nobody else does. The
// zero Queue is ready to use.
type Queue struct {
	kept atomic.Int64 // leases, extended or not

	mu      sync.Mutex
	waiting byEnd
	late    []*waiter     // the reply would come too late; the one that ends last is at the end
	places  int           // that calls have
	limit   int           // of places
	took    time.Duration // how long the last call that succeeded took
	best    time.Duration // and the quickest, since places was 0
}

// waiter is a lease that waits for its turn.
type waiter struct {
	end   time.Time
	turn  chan struct{} // closed when it has a place
	gone  bool          // it no longer waits
	given bool          // it has a place
}

// crowded reports whether there are more leases than may be extended at once.
func (q *Queue) crowded() bool { return q.kept.Load() > firstCalls }

// enter waits for a place for a call until ctx ends, or the lease does.
func (q *Queue) enter(ctx context.Context, end time.Time) bool {
	w := q.wait(end)
	if w == nil {
		return true
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-w.turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.gone = true; w.given {
		q.places--
		q.give()
	}
	return false
}

// wait returns nil if there is a place now.
func (q *Queue) wait(end time.Time) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places == 0 { // nobody waits either: what is known of the store may be old
		q.limit, q.took, q.best = firstCalls, 0, 0
	}
	if q.places < q.limit {
		q.places++
		return nil
	}
	w := &waiter{end: end, turn: make(chan struct{})}
	heap.Push(&q.waiting, w)
	return w
}

// give gives the places that are free.
func (q *Queue) give() {
	for q.places < q.limit {
		w := q.next()
		if w == nil {
			return
		}
		q.places++
		w.given = true
		close(w.turn)
	}
}

// next takes the next waiter out of the queue.
func (q *Queue) next() *waiter {
	soonest := time.Now().Add(q.took)
	for len(q.waiting) > 0 {
		w := heap.Pop(&q.waiting).(*waiter)
		switch {
		case w.gone:
		case w.end.Before(soonest):
			q.late = append(q.late, w)
		default:
			return w
		}
	}
	for n := len(q.late); n > 0; n-- {
		w := q.late[n-1]
		q.late = q.late[:n-1]
		if !w.gone {
			return w
		}
	}
	q.late = nil
	return nil
}

// place is that of a call for a lease of the given length.
type place struct {
	queue  *Queue
	length time.Duration
	begun  time.Time
	timer  *time.Timer
	left   bool
}

// begin begins a call with the place that enter has got. A call that takes long
// loses it: calls that hang must not keep the others waiting, and those for a long
// lease not the ones that have a short one.
func (q *Queue) begin(length time.Duration, now time.Time) *place {
	p := &place{queue: q, length: length, begun: now}
	q.mu.Lock()
	defer q.mu.Unlock()
	p.timer = time.AfterFunc(max(min(length/24, longCall), 2*q.best), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		p.leave()
	})
	return p
}

// leave gives the place to the next.
func (p *place) leave() {
	if !p.left {
		p.left = true
		p.queue.places--
		p.queue.give()
	}
}

// end ends a call. While others wait, a quick call makes room for another, and a
// slow one takes it away: more calls make a store that is busy slower, not faster.
func (p *place) end(succeeded bool) {
	took, q := time.Since(p.begun), p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	p.timer.Stop()
	if succeeded {
		q.took = took
		if took < q.best || q.best == 0 {
			q.best = took
		}
	}
	switch {
	case took > max(p.length/12, 2*q.best):
		q.limit = max(q.limit-1, leastCalls)
	case succeeded && took <= max(p.length/24, q.best*5/4) && len(q.waiting) > 0:
		q.limit++
	}
	p.leave()
	q.give()
}

// byEnd is a heap of the waiters, with the one that ends first in front.
type byEnd []*waiter

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].end.Before(h[j].end) }
func (h byEnd) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byEnd) Push(w any)        { *h = append(*h, w.(*waiter)) }

func (h *byEnd) Pop() any {
	n := len(*h) - 1
	w := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return w
}
