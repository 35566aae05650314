package console

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

func TestAConsumerThatIsDownIsShown(t *testing.T) {
	s, b := memstore.New(nil), membroker.New(nil)
	c := &inbox.Consumer{Name: "billing", Source: b.Queue("orders"), Stats: new(inbox.Stats),
		Handler: inbox.Tx(s, func(context.Context, *memstore.Tx, *broker.Message) error {
			return inbox.Unavailable(errors.New("<psp> refuses connections"))
		})}
	if errs := b.Publisher().Publish(t.Context(), []*broker.Message{{ID: "m0", Topic: "orders"}}); errs != nil {
		t.Fatal(errs)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	testenv.Await(t, "the outage is reported", func() bool {
		found, err := inbox.Outages(t.Context(), s, "billing")
		return err == nil && len(found) == 1
	})
	look := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
	look.follow("Consumers").shows("down", "orders", "refuses connections").hides("<psp>").follow("billing").shows("down", "refuses connections")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
