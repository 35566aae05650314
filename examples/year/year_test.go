package year

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/oncetest"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

// order is the request of a customer.
func order(id string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(id))
	return r.WithContext(httponce.WithKey(r.Context(), id))
}

// client is what customers send it with.
func client(network http.RoundTripper) http.RoundTripper { return &httponce.Transport{Base: network} }

// start builds an instance of the shop on what the year gives it.
func start(i *oncetest.Instance) oncetest.Program {
	db := i.Store()
	s := &Shop[*memstore.Tx]{Store: db, Events: outbox.New(db, nil), Insert: i.Row,
		Charge: func(ctx context.Context, order, key string) error { return i.Call(ctx, "charge", order, key) }}
	relay := &outbox.Relay{Store: db, Publisher: i.Publisher()}
	return oncetest.Program{
		Handler: s.Handler(),
		Run: []func(context.Context) error{relay.Run,
			s.Billing(i.Queue("billing", "orders")).Run, s.Receipts(i.Queue("receipts", "orders")).Run},
	}
}

func TestTheShopLivesThroughAYear(t *testing.T) {
	oncetest.Year(t, oncetest.Service{
		Effects: []oncetest.Effect{{Name: "order"}, {Name: "charge", HonoursKeys: true, Consumer: "billing"},
			{Name: "receipt", Consumer: "receipts"}},
		People:  1,
		Request: order,
		Client:  client,
		Start:   start,
	})
}
