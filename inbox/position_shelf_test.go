package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

// A process that opens a position learns of the shelf, whoever has put messages there.
func TestAProcessThatOpensAPositionKnowsTheShelf(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		first := logConsumer(b)
		first.Retry = inbox.Retry{Attempts: 1000, First: time.Minute, Limit: time.Minute}
		first.Handler = inbox.Tx(b.store, func(context.Context, *memstore.Tx, *broker.Message) error { return errors.New("not yet") })
		stop := start(t, first)
		b.publish("orders", ordered("m0", "a"))
		await(t, "the first is on the shelf", func() bool { return first.Stats.Shelved.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		second := logConsumer(b)
		start(t, second)
		b.publish("orders", ordered("m1", "a"), ordered("m2", "b"))
		await(t, "the other key", func() bool { return b.count("m2") == 1 })
		if b.count("m0") == 0 && b.count("m1") > 0 {
			t.Error("a message passes one of its ordering key that is on the shelf")
		}
	})
}
