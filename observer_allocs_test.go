package once

import (
	"context"
	"errors"
	"testing"
)

type optionsOnly struct {
	Store
	options *Options
}

func (s optionsOnly) Options() *Options { return s.options }

func TestNoObserverCostsNoAllocation(t *testing.T) {
	var s Store = optionsOnly{options: Options{}.Ready()}
	ctx, failed := context.Background(), errors.New("failed")
	op := &Operation[string]{Name: "pay"}
	w := op.For("1")
	var sink error
	if n := testing.AllocsPerRun(100, func() {
		sink = func() (err error) {
			ctx, seen := observeCall(ctx, s, "Do", w.key)
			defer seen.end(&err)
			seen.enter()
			w.tell(seen, Record{Status: Done, Attempt: 1}, true, nil)
			seen.fail(failed)
			return ctx.Err()
		}()
	}); n != 0 || sink != nil {
		t.Errorf("a call without an Observer costs %v allocations more, want 0 (%v)", n, sink)
	}
}
