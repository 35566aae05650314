package outbox

import (
	"context"
	"testing"

	"github.com/effectively-once/once/broker"
)

func TestNoObserverCostsNoAllocation(t *testing.T) {
	r, ctx := new(run), context.Background()
	ms := []*broker.Message{{ID: "1"}}
	var sink context.Context
	if n := testing.AllocsPerRun(100, func() {
		begun, ended := r.watch(ctx, ms)
		if ended != nil {
			t.Error("nobody observes, and somebody is to be told")
		}
		sink = begun
	}); n != 0 || sink != ctx {
		t.Errorf("a call of the publisher without an Observer costs %v allocations more, want 0", n)
	}
}
