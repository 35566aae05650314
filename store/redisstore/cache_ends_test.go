package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"
)

// late is a context past its deadline whose own timer has not fired.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }
func (late) Err() error                  { return nil }

// A context that has ended and has no error makes go-redis use a connection that was
// not made, and the standard library panic.
func TestAContextThatHasEndedSaysWhy(t *testing.T) {
	ctx := untilDeadline{late{t.Context()}, &ends{channels: make(map[int64]chan struct{})}}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	<-ctx.Done()
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its error is %v", err)
	}
	<-child.Done()
	if err := child.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error of its child is %v", err)
	}
}
