// Package flight lets the duplicates in one process wait in memory for the
// first of them, so that they hold no connection and ask no server.
package flight

import (
	"context"
	"sync"
	"time"
)

// Group is the set of flights in progress. The zero Group is ready to use.
type Group[K comparable, V any] struct {
	mu  sync.Mutex
	now map[K]*Flight[V]
}

// Flight is a call that its duplicates wait for. The zero Flight is ready to
// use, once.
type Flight[V any] struct {
	landed chan struct{} // nil: nobody waits
	result *V            // set before landed is closed
}

// Enter makes the caller the first of a flight of k, or joins the flight in
// progress until the given time or the end of ctx. The first caller flies own,
// and must call Land. The others get the value that it landed with; landed is
// false if they stopped waiting before.
func (g *Group[K, V]) Enter(ctx context.Context, k K, own *Flight[V], until time.Time) (first bool, v V, landed bool) {
	f := g.enter(k, own)
	if f == own {
		return true, v, false
	}
	v, landed = f.join(ctx, until)
	return false, v, landed
}

// Land ends a flight, and gives v to the callers that joined it. keep makes a
// copy of v if there are any. Land also runs if the first caller panicked: then
// v is zero.
func (g *Group[K, V]) Land(k K, f *Flight[V], v V, keep func(V) V) {
	g.mu.Lock()
	delete(g.now, k)
	g.mu.Unlock()
	if f.landed != nil { // nobody can join any more
		kept := keep(v)
		f.result = &kept
		close(f.landed)
	}
}

// enter returns the flight in progress, which is own if there was none.
func (g *Group[K, V]) enter(k K, own *Flight[V]) *Flight[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.now[k]; f != nil {
		if f.landed == nil {
			f.landed = make(chan struct{})
		}
		return f
	}
	if g.now == nil {
		g.now = make(map[K]*Flight[V])
	}
	g.now[k] = own
	return own
}

func (f *Flight[V]) join(ctx context.Context, until time.Time) (v V, landed bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-f.landed:
		return *f.result, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return v, false
}
