package wake_test

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
)

// Whatever arrives while nobody waits is seen by the next who does.
func TestReceiveMissesNoSignal(t *testing.T) {
	c, arrived := make(chan struct{}, 1), false
	take := func(int) ([]broker.Delivery, error) {
		if arrived {
			return make([]broker.Delivery, 1), nil
		}
		arrived = true
		wake.Signal(c)
		wake.Signal(c) // does not block
		return nil, nil
	}
	if ds, err := wake.Receive(context.Background(), 1, c, take); len(ds) != 1 || err != nil {
		t.Errorf("got %d deliveries, %v", len(ds), err)
	}
}

func TestReceiveEndsWithItsContextAndWithItsSession(t *testing.T) {
	c, lost := make(chan struct{}, 1), errors.New("lost")
	ctx, cancel := context.WithCancel(context.Background())
	nothing := func(int) ([]broker.Delivery, error) {
		cancel()
		return nil, nil
	}
	if _, err := wake.Receive(ctx, 1, c, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := wake.Receive(context.Background(), 1, c, func(int) ([]broker.Delivery, error) { return nil, lost }); err != lost {
		t.Errorf("got %v", err)
	}
	if _, err := wake.Receive(context.Background(), 0, c, nothing); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestAwaitReturnsRoomOrTheEnd(t *testing.T) {
	c, ended, asked := make(chan struct{}, 1), make(chan struct{}), 0
	room := func() int {
		if asked++; asked == 2 {
			return 5
		}
		wake.Signal(c)
		return 0
	}
	if n := wake.Await(ended, c, room); n != 5 {
		t.Errorf("got %d", n)
	}
	if n := wake.Await(ended, c, func() int { close(ended); return 0 }); n != 0 {
		t.Errorf("got %d", n)
	}
	if n := wake.Await(ended, c, func() int { return 5 }); n != 0 {
		t.Errorf("after the end there is room for %d", n)
	}
}
