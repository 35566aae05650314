package outbox

import (
	"context"
	"testing"

	"github.com/effectively-once/once/broker"
)

func TestNoObserverCostsNoAllocation(t *testing.T) {
	e, ctx := new(env), context.Background()
	ms := []*broker.Message{{ID: "1"}}
	var sink context.Context
	if n := testing.AllocsPerRun(100, func() {
		publishing, ended := e.observe(ctx, ms)
		if ended != nil {
			t.Error("there is no Observer, and a function to tell it")
		}
		sink = publishing
	}); n != 0 || sink != ctx {
		t.Errorf("a call of the publisher without an Observer costs %v allocations more, want 0", n)
	}
}
