package turn_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/effectively-once/once/internal/turn"
)

func TestAWaiterObeysItsContext(t *testing.T) {
	var lock turn.Turn
	if err := lock.Take(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("no longer wanted")
	waited := make(chan error)
	go func() { waited <- lock.Take(ctx) }()
	cancel(why)
	if err := <-waited; !errors.Is(err, why) {
		t.Errorf("Take returned %v, want %v", err, why)
	}
	if lock.TryTake() {
		t.Error("TryTake took a lock that is held")
	}
	lock.Give()
	if err := lock.Take(ctx); !errors.Is(err, why) {
		t.Errorf("Take with a context that had ended returned %v, want %v", err, why)
	}
	if !lock.TryTake() {
		t.Error("nobody has the lock, and TryTake did not take it")
	}
	lock.Give()
}

func TestOneAtATime(t *testing.T) {
	var lock turn.Turn
	var all sync.WaitGroup
	n := 0
	for range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			if lock.Take(context.Background()) == nil {
				n++
				lock.Give()
			}
		}()
	}
	if all.Wait(); n != 100 {
		t.Errorf("counted %d, want 100", n)
	}
}
