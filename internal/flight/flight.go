// Package flight lets the duplicates of one process wait for the first of them in memory,
// so that they hold no connection and ask no server meanwhile.
package flight

import (
	"context"
	"sync"
	"time"
)

// Group is the set of flights that are on their way. The zero Group is ready to use.
type Group[K comparable, V any] struct {
	mu  sync.Mutex
	now map[K]*Flight[V]
}

// Flight is a call that others wait for.
type Flight[V any] struct {
	landed chan struct{} // nil: nobody waits
	result V             // set before landed is closed
}

// Do runs call if no flight of k is on its way. Else it joins that one, at most until a time, and returns what
// it landed with. joined is false if call was run or if nothing landed in time; late tells the two apart.
// keep makes a copy of a result that has to outlive the call, where somebody waits for it.
func (g *Group[K, V]) Do(ctx context.Context, k K, until time.Time, call func() V, keep func(V) V) (v V, joined, late bool) {
	f, first := g.enter(k)
	if !first {
		return f.join(ctx, until)
	}
	defer func() { g.leave(k, f, &v, keep) }()
	return call(), false, false
}

func (g *Group[K, V]) enter(k K) (f *Flight[V], first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.now[k]; f != nil {
		if f.landed == nil {
			f.landed = make(chan struct{})
		}
		return f, false
	}
	if g.now == nil {
		g.now = make(map[K]*Flight[V])
	}
	f = new(Flight[V])
	g.now[k] = f
	return f, true
}

// leave also runs when the call panicked: then the flight lands with the zero V.
func (g *Group[K, V]) leave(k K, f *Flight[V], v *V, keep func(V) V) {
	g.mu.Lock()
	delete(g.now, k)
	g.mu.Unlock()
	if f.landed != nil { // nobody can join any more
		f.result = keep(*v)
		close(f.landed)
	}
}

func (f *Flight[V]) join(ctx context.Context, until time.Time) (v V, joined, late bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-f.landed:
		return f.result, true, false
	case <-timer.C:
	case <-ctx.Done():
	}
	return v, false, true
}
