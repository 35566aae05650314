package membroker_test

import (
	"context"
	"fmt"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

// An ack is lost, so the message comes twice.
func ExampleBroker_LoseAcks() {
	ctx, b := context.Background(), membroker.New(nil)
	session, err := b.Queue("orders").Open(ctx, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close(ctx)
	b.Publisher().Publish(ctx, []*broker.Message{{ID: "order 7", Topic: "orders"}})

	b.LoseAcks(1)
	for range 2 {
		ds, err := session.Receive(ctx, 10)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ds[0].Message.ID, ds[0].Redelivered, session.Ack(ctx, ds))
	}
	// Output:
	// order 7 false <nil>
	// order 7 true <nil>
}
