// Package turn has a lock whose waiters obey their contexts. It is for locks that
// are held over a call that can block, such as a request or a user's function. A
// sync.Mutex there would make a caller wait after its context has ended.
package turn

import (
	"context"
	"sync"
)

// A Turn is a lock. The zero value is unlocked. It must not be copied after its
// first use.
type Turn struct {
	once sync.Once
	held chan struct{} // has an element while somebody has the lock
}

func (t *Turn) init() { t.once.Do(func() { t.held = make(chan struct{}, 1) }) }

// Take waits for the lock. If ctx ends first, it returns the cause of that, and the
// caller does not have the lock.
func (t *Turn) Take(ctx context.Context) error {
	t.init()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case t.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TryTake takes the lock if nobody has it.
func (t *Turn) TryTake() bool {
	t.init()
	select {
	case t.held <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give unlocks.
func (t *Turn) Give() { <-t.held }
