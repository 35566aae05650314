package inbox

import (
	"context"
	"log/slog"
	"testing"

	"github.com/effectively-once/once/broker"
)

func TestNoObserverCostsNoAllocation(t *testing.T) {
	e := &env{Consumer: new(Consumer), logger: slog.New(slog.DiscardHandler)}
	items := []*item{{Delivery: broker.Delivery{Message: &broker.Message{ID: "1"}}}}
	ctx := context.Background()
	var sink context.Context
	if n := testing.AllocsPerRun(100, func() {
		handling, observed := e.observe(ctx, items, false)
		defer observed.end()
		observed.set(0, result{kind: handled, reason: "none"})
		observed.end()
		sink = handling
	}); n != 0 || sink != ctx {
		t.Errorf("a message without an Observer costs %v allocations more, want 0", n)
	}
}
