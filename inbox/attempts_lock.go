package inbox

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// exclusiveWait is how long the last attempt at a message waits for running
// attempts, and keeps new ones from starting.
const exclusiveWait = 30 * time.Second

// attemptLock is held while a handler runs. Attempts share it, but the last
// attempt at a message has it exclusively. If that attempt ends the process, no
// other message is blamed for it.
type attemptLock struct {
	mu        sync.Mutex
	shared    int  // attempts that share the lock
	exclusive bool // one attempt has the lock
	waiting   int  // attempts that wait to have it exclusively
	changed   chan struct{}

	keys map[once.Key]bool // those that attempts of this process have
}

func newAttemptLock() *attemptLock {
	return &attemptLock{changed: make(chan struct{}), keys: make(map[once.Key]bool)}
}

// heldLock is an attempt's hold of the lock. Defer release: the store may end
// the goroutine, as a handler may.
type heldLock struct {
	lock   *attemptLock
	unlock func()
	keys   []once.Key
}

func (l *attemptLock) held() *heldLock { return &heldLock{lock: l, unlock: func() {}} }

// takeKeys takes the keys of items, until release. It returns how many items,
// from the first on, may be tried. A copy of a message that this process is
// handling waits without an attempt. A first delivery is not counted, and is left
// to the store.
func (h *heldLock) takeKeys(items []*item) int {
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	for i, it := range items {
		taken := h.lock.keys[it.countKey]
		if taken && it.counting == countBefore {
			return i
		}
		if !taken {
			h.lock.keys[it.countKey] = true
			h.keys = append(h.keys, it.countKey)
		}
	}
	return len(items)
}

func (h *heldLock) share(ctx context.Context) (err error) {
	h.release()
	h.unlock, err = h.lock.share(ctx)
	return err
}

// exclude keeps the keys.
func (h *heldLock) exclude(ctx context.Context) (err error) {
	h.unlock()
	h.unlock, err = h.lock.exclude(ctx)
	return err
}

func (h *heldLock) release() {
	h.unlock()
	h.unlock = func() {}
	if len(h.keys) == 0 {
		return
	}
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	for _, k := range h.keys {
		delete(h.lock.keys, k)
	}
	h.keys = nil
}

// acquire is exclude for a last attempt, and share for any other.
func (l *attemptLock) acquire(ctx context.Context, last bool) (unlock func(), err error) {
	if last {
		return l.exclude(ctx)
	}
	return l.share(ctx)
}

// share waits until no attempt has the lock exclusively or waits for that.
func (l *attemptLock) share(ctx context.Context) (unlock func(), err error) {
	err = l.wait(ctx, func() bool {
		if l.exclusive || l.waiting > 0 {
			return false
		}
		l.shared++
		return true
	})
	return l.unlockFunc(err, func() { l.shared-- }), err
}

// exclude waits until no other attempt has the lock. After exclusiveWait it
// shares the lock instead, so that a handler that hangs does not stop all
// others.
func (l *attemptLock) exclude(ctx context.Context) (unlock func(), err error) {
	limited, cancel := context.WithTimeout(ctx, exclusiveWait)
	defer cancel()
	l.mu.Lock()
	l.waiting++
	l.mu.Unlock()
	err = l.wait(limited, func() bool {
		if l.exclusive || l.shared > 0 {
			return false
		}
		l.exclusive = true
		return true
	})
	l.change(func() { l.waiting-- })
	if err != nil && ctx.Err() == nil {
		return l.share(ctx)
	}
	return l.unlockFunc(err, func() { l.exclusive = false }), err
}

func (l *attemptLock) unlockFunc(err error, unlock func()) func() {
	if err != nil {
		return func() {}
	}
	return sync.OnceFunc(func() { l.change(unlock) })
}

func (l *attemptLock) change(how func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *attemptLock) wait(ctx context.Context, acquire func() bool) error {
	for {
		l.mu.Lock()
		acquired, changed := acquire(), l.changed
		l.mu.Unlock()
		if acquired {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
