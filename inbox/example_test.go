package inbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

// A message that is delivered twice is handled once.
func ExampleConsumer() {
	store, b := memstore.New(nil), membroker.New(nil)
	stats := new(inbox.Stats)
	points := &inbox.Consumer{Name: "points", Source: b.Queue("orders"), Stats: stats,
		Handler: inbox.Tx(store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			had, _ := tx.Get("points of ann")
			tx.Set("points of ann", had+"*")
			return nil
		})}

	order := &broker.Message{ID: "order-1", Topic: "orders"}
	b.Publisher().Publish(context.Background(), []*broker.Message{order, order})

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() {
		for range time.Tick(time.Millisecond) {
			if stats.Handled.Load()+stats.Duplicates.Load() == 2 || ctx.Err() != nil {
				break
			}
		}
		cancel()
	}()
	if err := points.Run(ctx); err != nil {
		fmt.Println(err)
	}
	earned, _ := store.Value("points of ann")
	fmt.Println(earned, stats.Duplicates.Load(), "duplicate")
	// Output: * 1 duplicate
}
