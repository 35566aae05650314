package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// A topic is down, and the messages that are tried for it are too old to be told from
// new: they are parked, and show nothing. Another one is tried at once.
func TestAProbeThatIsTooOldDoesNotKeepOthersFromTrying(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		var down atomic.Bool
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), Concurrency: 1}
		c.Handler = inbox.Tx(b.store, func(_ context.Context, tx mtx, m *broker.Message) error {
			if down.Load() {
				return inbox.Unavailable(errors.New("down"))
			}
			b.add(tx, m.ID)
			return nil
		})
		b.publish("orders", message("first"))
		stop := start(t, c)
		await(t, "the consumer is known", func() bool { return c.Stats.Handled.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		down.Store(true)
		b.publish("orders", message("m1"))
		for i := range 5 {
			old := message(fmt.Sprint("old", i))
			old.Time = time.Now().Add(-31 * 24 * time.Hour)
			b.publish("orders", old)
		}
		start(t, c)
		time.Sleep(100 * time.Millisecond)
		down.Store(false)
		begun := time.Now()
		await(t, "m1 is handled", func() bool { return c.Stats.Handled.Load() == 2 && c.Stats.Parked.Load() == 5 })
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("it took %v after the outage", took)
		}
	})
}
