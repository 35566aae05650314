package inbox

import (
	"sync"
	"time"
)

// lanes hold the items that are received and not at work. The items of one lane are at work one after another; those
// without a lane are alone in theirs. It has no goroutines.
type lanes struct {
	mu     sync.Mutex
	change sync.Cond
	named  map[string]*lane
	ready  []*lane // in the order in which they became so
	closed bool
}

type lane struct {
	name   string
	items  []*item
	busy   bool // at work, or waiting in ready
	paused *time.Timer
}

func newLanes() *lanes {
	l := &lanes{named: make(map[string]*lane)}
	l.change.L = &l.mu
	return l
}

// put adds items behind those of their lanes.
func (l *lanes) put(items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		ln := l.lane(it.lane)
		ln.items = append(ln.items, it)
		l.offer(ln)
	}
}

func (l *lanes) lane(name string) *lane {
	if name == "" {
		return new(lane)
	}
	if l.named[name] == nil {
		l.named[name] = &lane{name: name}
	}
	return l.named[name]
}

// offer makes a lane ready that has items and nothing that speaks against it.
func (l *lanes) offer(ln *lane) {
	if !ln.busy && ln.paused == nil && len(ln.items) > 0 && !l.closed {
		ln.busy = true
		l.ready = append(l.ready, ln)
		l.change.Signal()
	}
}

// take waits for items and returns at most limit of them, from one lane or from any number. Their lanes are the
// caller's until release. It returns nothing when the lanes are closed.
func (l *lanes) take(limit int, one bool) (taken []*item, from []*lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(taken) == 0 {
		for len(l.ready) == 0 && !l.closed {
			l.change.Wait()
		}
		if l.closed {
			return nil, nil
		}
		taken, from = l.gather(limit, one)
	}
	return taken, from
}

func (l *lanes) gather(limit int, one bool) (taken []*item, from []*lane) {
	for len(l.ready) > 0 && len(taken) < limit && (!one || len(from) == 0) {
		ln := l.ready[0]
		l.ready = l.ready[1:]
		if len(ln.items) == 0 { // they were dropped
			ln.busy = false
			l.pause(ln, 0)
			continue
		}
		n := min(limit-len(taken), len(ln.items))
		taken, from = append(taken, ln.items[:n]...), append(from, ln)
		ln.items = ln.items[n:]
	}
	return taken, from
}

// release gives lanes back, with the items that are to be tried again in front, none of them before its time. It returns
// those that cannot be, because the lanes are closed.
func (l *lanes) release(from []*lane, back []*item, after map[*item]time.Duration) (left []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return back
	}
	returned := make(map[string][]*item)
	for _, it := range back {
		if it.lane == "" {
			l.pause(&lane{items: []*item{it}}, after[it])
			continue
		}
		returned[it.lane] = append(returned[it.lane], it)
	}
	for _, ln := range from {
		ln.busy = false
		wait := time.Duration(0)
		if first := returned[ln.name]; ln.name != "" && len(first) > 0 {
			ln.items, wait = append(first, ln.items...), after[first[0]]
		}
		l.pause(ln, wait)
	}
	return nil
}

func (l *lanes) pause(ln *lane, d time.Duration) {
	switch {
	case len(ln.items) == 0:
		if ln.name != "" && l.named[ln.name] == ln {
			delete(l.named, ln.name)
		}
	case d <= 0:
		l.offer(ln)
	default:
		if ln.name == "" { // so that it is found when the lanes are closed
			ln.name = "\x00" + string(ln.items[0].token[:])
			ln.items[0].lane = ln.name
			l.named[ln.name] = ln
		}
		ln.paused = time.AfterFunc(d, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			ln.paused = nil
			l.offer(ln)
		})
	}
}

// drop takes out the items of a lane that nobody works on.
func (l *lanes) drop(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.named[name]; ln != nil {
		ln.items = nil
	}
}

// close lets every take return nothing, and returns the items that are not at work.
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
		if ln.paused != nil {
			ln.paused.Stop()
		}
		left = append(left, ln.items...)
		ln.items = nil
	}
	l.ready = nil
	l.change.Broadcast()
	return left
}
