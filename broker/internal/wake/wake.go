// Package wake lets the goroutines of a session wait for one another, by channels
// of capacity one.
package wake

import (
	"context"
	"fmt"

	"github.com/effectively-once/once/broker"
)

// Signal wakes the reader of a channel, now or when it next waits.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Receive is the Receive of a session whose take returns what has arrived, at
// once. Arrivals and the end of the session signal c.
func Receive(ctx context.Context, limit int, c <-chan struct{}, take func(limit int) ([]broker.Delivery, error)) ([]broker.Delivery, error) {
	if limit < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least 1", broker.ErrInvalid, limit)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ds, err := take(limit); err != nil || len(ds) > 0 {
			return ds, err
		}
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
}

// Await waits until a session may fetch messages, and returns how many. It returns
// 0 when the session has ended. What changes the answer of room signals c.
func Await(ended <-chan struct{}, c <-chan struct{}, room func() int) int {
	for {
		select {
		case <-ended:
			return 0
		default:
		}
		if n := room(); n > 0 {
			return n
		}
		select {
		case <-c:
		case <-ended:
		}
	}
}
