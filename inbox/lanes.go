package inbox

import (
	"sync"
	"time"
)

// lanes hold the items that are received and not being handled. The items of a
// named lane are handled one after another. An item without a name has a lane
// of its own. It is safe for concurrent use.
type lanes struct {
	mu     sync.Mutex
	change sync.Cond
	named  map[string]*laneQueue
	ready  []*laneQueue // in the order in which they became ready
	closed bool
}

type laneQueue struct {
	name  string
	items []*item
	phase lanePhase
	timer *time.Timer // ends laneWaiting
}

type lanePhase int

const (
	laneIdle    lanePhase = iota // it has no items
	laneReady                    // it is in ready
	laneTaken                    // a worker handles its first items
	laneWaiting                  // its first item waits for a retry
)

func newLanes() *lanes {
	l := &lanes{named: make(map[string]*laneQueue)}
	l.change.L = &l.mu
	return l
}

// put appends items to their lanes.
func (l *lanes) put(items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		ln := l.lane(it.lane)
		ln.items = append(ln.items, it)
		l.offer(ln)
	}
}

func (l *lanes) lane(name string) *laneQueue {
	if name == "" {
		return new(laneQueue)
	}
	if l.named[name] == nil {
		l.named[name] = &laneQueue{name: name}
	}
	return l.named[name]
}

// offer makes an idle lane ready if it has items.
func (l *lanes) offer(ln *laneQueue) {
	if ln.phase == laneIdle && len(ln.items) > 0 && !l.closed {
		ln.phase = laneReady
		l.ready = append(l.ready, ln)
		l.change.Signal()
	}
}

// take waits for items and returns up to limit of them, from one lane or from
// any number. The caller has their lanes until it calls release. take returns
// nothing after close.
func (l *lanes) take(limit int, oneLane bool) (taken []*item, from []*laneQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(taken) == 0 {
		for len(l.ready) == 0 && !l.closed {
			l.change.Wait()
		}
		if l.closed {
			return nil, nil
		}
		taken, from = l.gather(limit, oneLane)
	}
	return taken, from
}

func (l *lanes) gather(limit int, oneLane bool) (taken []*item, from []*laneQueue) {
	for len(l.ready) > 0 && len(taken) < limit && (!oneLane || len(from) == 0) {
		ln := l.ready[0]
		l.ready = l.ready[1:]
		if len(ln.items) == 0 { // they were dropped
			l.next(ln, 0)
			continue
		}
		n := min(limit-len(taken), len(ln.items))
		taken, from = append(taken, ln.items[:n]...), append(from, ln)
		ln.items, ln.phase = ln.items[n:], laneTaken
	}
	return taken, from
}

// release gives lanes back, with the items to try again at their front. None of
// them is tried before its delay in after. It returns the items that cannot be
// tried again because the lanes are closed.
func (l *lanes) release(from []*laneQueue, back []*item, after map[*item]time.Duration) (left []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return back
	}
	returned := make(map[string][]*item)
	for _, it := range back {
		if it.lane == "" {
			l.next(&laneQueue{items: []*item{it}}, after[it])
			continue
		}
		returned[it.lane] = append(returned[it.lane], it)
	}
	for _, ln := range from {
		wait := time.Duration(0)
		if first := returned[ln.name]; ln.name != "" && len(first) > 0 {
			ln.items, wait = append(first, ln.items...), after[first[0]]
		}
		l.next(ln, wait)
	}
	return nil
}

// next moves a lane that no worker has to its next phase.
func (l *lanes) next(ln *laneQueue, wait time.Duration) {
	ln.phase = laneIdle
	switch {
	case len(ln.items) == 0:
		if ln.name != "" && l.named[ln.name] == ln {
			delete(l.named, ln.name)
		}
	case wait <= 0:
		l.offer(ln)
	default:
		if ln.name == "" { // close has to find it
			ln.name = "\x00" + string(ln.items[0].token[:])
			ln.items[0].lane = ln.name
			l.named[ln.name] = ln
		}
		ln.phase = laneWaiting
		ln.timer = time.AfterFunc(wait, func() { l.waited(ln) })
	}
}

func (l *lanes) waited(ln *laneQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.phase == laneWaiting {
		ln.phase = laneIdle
		l.offer(ln)
	}
}

// wake ends the waits for topics that were down.
func (l *lanes) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.named {
		if ln.phase == laneWaiting && len(ln.items) > 0 && ln.items[0].waitsUp {
			ln.timer.Stop()
			ln.phase = laneIdle
			l.offer(ln)
		}
	}
}

// drop removes the items of a lane, but not those that a worker has.
func (l *lanes) drop(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.named[name]; ln != nil {
		ln.items = nil
	}
}

// close makes every take return nothing, and returns the items that no worker
// has.
func (l *lanes) close() (left []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, ln := range l.ready {
		if ln.name == "" {
			left = append(left, ln.items...)
		}
	}
	for _, ln := range l.named {
		if ln.timer != nil {
			ln.timer.Stop()
		}
		left = append(left, ln.items...)
		ln.items = nil
	}
	l.ready = nil
	l.change.Broadcast()
	return left
}
