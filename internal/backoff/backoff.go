// Package backoff spaces retries: each wait is longer than the one before, up
// to a limit, with jitter so that competing callers spread out.
package backoff

import (
	"context"
	"time"

	"github.com/effectively-once/once/internal/chance"
)

// Backoff is a series of waits. It is not safe for concurrent use.
type Backoff struct {
	First time.Duration // the first wait, before jitter
	Limit time.Duration // no wait is longer
	next  time.Duration
}

// Next returns the next wait: between half and all of a span that doubles each
// time.
func (b *Backoff) Next() time.Duration {
	if b.next == 0 {
		b.next = b.First
	}
	span := min(b.next, b.Limit)
	b.next = min(span*2, b.Limit)
	return span/2 + chance.N(span/2+1)
}

// Sleep waits for d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
