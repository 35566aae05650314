package lazyctx_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/lazyctx"
)

func TestLimitEndsInTime(t *testing.T) {
	ctx := lazyctx.Limit(t.Context(), time.Now().Add(20*time.Millisecond))
	defer ctx.Stop()
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > 20*time.Millisecond || ctx.Err() != nil {
		t.Errorf("it ends %v, %v", end, ctx.Err())
	}
	for ctx.Err() == nil { // nobody has asked for Done
		runtime.Gosched()
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("it ended with %v", ctx.Err())
	}
	<-ctx.Done()
}

func TestLimitWakesWhoWaits(t *testing.T) {
	ctx := lazyctx.Limit(t.Context(), time.Now().Add(10*time.Millisecond))
	defer ctx.Stop()
	<-ctx.Done()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		t.Errorf("%v, because of %v", ctx.Err(), context.Cause(ctx))
	}
}

func TestStop(t *testing.T) {
	for _, asked := range []bool{false, true} {
		ctx := lazyctx.Limit(t.Context(), time.Now().Add(time.Hour))
		if asked {
			ctx.Done()
		}
		ctx.Stop()
		ctx.Stop()
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("asked %v: %v", asked, ctx.Err())
		}
	}
}

func TestParentEnds(t *testing.T) {
	why := errors.New("why")
	for _, asked := range []bool{false, true} {
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), t, "value"))
		ctx := lazyctx.Limit(parent, time.Now().Add(time.Hour))
		if asked {
			ctx.Done()
		}
		cancel(why)
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) || context.Cause(ctx) != why || ctx.Value(t) != "value" {
			t.Errorf("asked %v: %v, because of %v", asked, ctx.Err(), context.Cause(ctx))
		}
		ctx.Stop()
	}
	near, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx := lazyctx.Limit(near, time.Now().Add(time.Hour))
	defer ctx.Stop()
	if end, _ := ctx.Deadline(); time.Until(end) > time.Minute {
		t.Errorf("it outlives its parent, until %v", end)
	}
}

// Contexts below it end with it, and without a goroutine each.
func TestChildren(t *testing.T) {
	ctx := lazyctx.Limit(t.Context(), time.Now().Add(time.Hour))
	before := runtime.NumGoroutine()
	var children []context.Context
	for range 100 {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		children = append(children, child)
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines more", n)
	}
	ctx.Stop()
	for _, child := range children {
		<-child.Done()
	}
}

func TestDetached(t *testing.T) {
	why := errors.New("why")
	for _, asked := range []bool{false, true} {
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), t, "value"))
		ctx := lazyctx.Detach(parent, time.Now().Add(time.Hour))
		if asked {
			ctx.Done()
		}
		cancel(why)
		if ctx.Err() != nil || context.Cause(ctx) != nil || ctx.Value(t) != "value" {
			t.Errorf("asked %v: %v, because of %v", asked, ctx.Err(), context.Cause(ctx))
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		ctx.Stop()
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("%v", ctx.Err())
		}
	}
}

func TestEnd(t *testing.T) {
	why := errors.New("why")
	for _, asked := range []bool{false, true} {
		var ctx lazyctx.Context
		ctx.Init(t.Context())
		if asked {
			ctx.Done()
		}
		ctx.End(why)
		ctx.End(errors.New("later"))
		if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) || context.Cause(&ctx) != why {
			t.Errorf("asked %v: %v, because of %v", asked, ctx.Err(), context.Cause(&ctx))
		}
	}
}
