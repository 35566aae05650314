package console

import (
	"context"
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// halfRead is a store with damaged rows of consumers and positions.
type halfRead struct {
	*memstore.Store
	consumer store.Consumer
}

func (s halfRead) Consumers(ctx context.Context) ([]store.Consumer, error) {
	all, err := s.Store.Consumers(ctx)
	return append(all, s.consumer), err
}

func (s halfRead) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	all, err := s.Store.Positions(ctx, consumer)
	for i := range all {
		if all[i].Partition == "orders/1" {
			all[i].Damaged = fmt.Errorf("%w: its <epoch> is none", once.ErrCorrupt)
		}
	}
	return all, err
}

// What cannot be read is shown with its reason, beside the rest.
func TestDamagedConsumersAndPositionsAreShown(t *testing.T) {
	for name, row := range map[string]store.Consumer{
		"all of it": {},
		"its keys":  {Name: "mailing", Source: "queue mail"},
	} {
		t.Run(name, func(t *testing.T) {
			row.Damaged = fmt.Errorf("%w: its <keys> are gone", once.ErrCorrupt)
			s := halfRead{memstore.New(nil), row}
			if _, err := s.Register(t.Context(), store.Consumer{Name: "billing", Source: "log orders"}); err != nil {
				t.Fatal(err)
			}
			for _, partition := range []string{"orders/0", "orders/1"} {
				if err := s.SetPosition(t.Context(), store.Position{Consumer: "billing", Partition: partition, Log: "a log", Offset: 4711}); err != nil {
					t.Fatal(err)
				}
			}
			look := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
			p := look.follow("Consumers").shows("damaged", "are gone", "billing").hides("<keys>")
			p.follow("billing").shows("4711", "orders/0", "orders/1", "damaged", "is none").hides("<epoch>")
			if row.Name != "" {
				look.get("/consumers/one?name=mailing&store=shop").shows("damaged", "are gone", "Its row cannot be read").hides("Nothing is parked")
			}
		})
	}
}
