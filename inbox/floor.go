package inbox

import (
	"context"
	"sync"
	"time"
)

// aloneWithin is how long the last attempt at a message waits for the others that are at work, and keeps new ones from
// beginning.
const aloneWithin = 30 * time.Second

// floor is where handlers are at work. A message that is about to have its last attempt gets it for itself, so that none
// is blamed for the death of a process that another has ended.
type floor struct {
	mu      sync.Mutex
	shared  int
	taken   bool // by one alone
	wanted  int  // by how many alone
	changed chan struct{}
}

func newFloor() *floor { return &floor{changed: make(chan struct{})} }

// spot is where on the floor one is at work. Whoever has one leaves it in a deferred call: a call of the store may end the
// goroutine, as a handler may.
type spot struct {
	floor *floor
	free  func()
}

func (f *floor) spot() *spot { return &spot{f, func() {}} }

func (s *spot) share(ctx context.Context) (err error) {
	s.leave()
	s.free, err = s.floor.share(ctx)
	return err
}

func (s *spot) alone(ctx context.Context) (err error) {
	s.leave()
	s.free, err = s.floor.alone(ctx)
	return err
}

func (s *spot) leave() { s.free() }

// enter is alone, or share.
func (f *floor) enter(ctx context.Context, alone bool) (leave func(), err error) {
	if alone {
		return f.alone(ctx)
	}
	return f.share(ctx)
}

// share waits until nobody is alone on the floor, or wants to be.
func (f *floor) share(ctx context.Context) (leave func(), err error) {
	err = f.wait(ctx, func() bool {
		if f.taken || f.wanted > 0 {
			return false
		}
		f.shared++
		return true
	})
	return f.leaving(err, func() { f.shared-- }), err
}

// alone waits until nobody else is on the floor, but not for ever: a handler that hangs must not stop all others.
func (f *floor) alone(ctx context.Context) (leave func(), err error) {
	limited, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()
	f.mu.Lock()
	f.wanted++
	f.mu.Unlock()
	err = f.wait(limited, func() bool {
		if f.taken || f.shared > 0 {
			return false
		}
		f.taken = true
		return true
	})
	f.change(func() { f.wanted-- })
	if err != nil && ctx.Err() == nil {
		return f.share(ctx)
	}
	return f.leaving(err, func() { f.taken = false }), err
}

func (f *floor) leaving(err error, leave func()) func() {
	if err != nil {
		return func() {}
	}
	return sync.OnceFunc(func() { f.change(leave) })
}

func (f *floor) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *floor) wait(ctx context.Context, enter func() bool) error {
	for {
		f.mu.Lock()
		entered, changed := enter(), f.changed
		f.mu.Unlock()
		if entered {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
