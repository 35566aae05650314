package storebroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// spoiled is a store with damaged rows in its registry.
type spoiled struct {
	*memstore.Store
	rows []store.Consumer
}

func (s *spoiled) Consumers(ctx context.Context) ([]store.Consumer, error) {
	all, err := s.Store.Consumers(ctx)
	for _, row := range s.rows {
		all = slices.DeleteFunc(all, func(c store.Consumer) bool { return c.Name == "mailing" })
		row.Damaged = fmt.Errorf("%w: by a test", once.ErrCorrupt)
		all = append(all, row)
	}
	return all, err
}

// A consumer that cannot be read is registered. What is published to its topic, or
// to any if its own is not known, waits in the outbox, so that it loses nothing.
func TestNothingIsPublishedPastADamagedConsumer(t *testing.T) {
	for name, c := range map[string]struct {
		row    store.Consumer
		orders bool // are published
		stock  bool
	}{
		"all of it":                {store.Consumer{}, false, false},
		"its keys":                 {store.Consumer{Name: "mailing", Source: store.TopicSource("orders")}, false, true},
		"its keys, with facts":     {store.Consumer{Name: "mailing", Source: store.SourceText(store.TopicSource("orders"), map[string]string{"at": "x"})}, false, true},
		"its source":               {store.Consumer{Name: "mailing", Keys: "mailing"}, false, false},
		"its name":                 {store.Consumer{Source: store.TopicSource("orders"), Keys: "mailing"}, false, true},
		"its time, so it gets all": {store.Consumer{Name: "mailing", Source: store.TopicSource("orders"), Keys: "mailing"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spoiled{Store: memstore.New(nil)}
			for consumer, topic := range map[string]string{"billing": "orders", "mailing": "orders", "picking": "stock"} {
				register(t, s, consumer, topic)
			}
			s.rows = []store.Consumer{c.row}
			order, item := message("1", ""), message("2", "")
			item.Topic = "stock"
			errs := storebroker.New(s, nil).Publisher().Publish(soon(t), []*broker.Message{order, item})
			for i, published := range []bool{c.orders, c.stock} {
				var err error
				if errs != nil {
					err = errs[i]
				}
				if published != (err == nil) || !published && (!errors.Is(err, broker.ErrNotYet) || !errors.Is(err, once.ErrCorrupt) || !strings.Contains(err.Error(), "by a test")) {
					t.Errorf("message %d: %v, want it published: %v", i+1, err, published)
				}
			}
			for consumer, has := range map[string]bool{"billing": c.orders, "mailing": c.orders, "picking": c.stock} {
				rows, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: store.QueueOf(consumer)})
				must(t, err)
				if has != (len(rows) == 1) {
					t.Errorf("%s has %d messages", consumer, len(rows))
				}
			}
		})
	}
}
