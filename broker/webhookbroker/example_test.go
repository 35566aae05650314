package webhookbroker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/store/memstore"
)

var book = &once.Operation[string]{Name: "book", OnUnknown: once.Park}

// receiver handles each webhook once, however often it is sent. It responds
// with 2xx once the work is done, now or before. Until then the sender retries.
func receiver(store once.Store, work func(m *broker.Message) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body cannot be read, or is above 1 MiB", http.StatusRequestEntityTooLarge)
			return
		}
		m, err := webhookbroker.Verify([]string{secret}, r.Header, body, 0)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		_, err = once.Do(r.Context(), store, book.For(m.ID), func(context.Context, once.Key) (string, error) {
			return work(m), nil
		})
		switch {
		case err == nil, errors.Is(err, once.ErrRejected): // recorded: it would not end in another way
			w.WriteHeader(http.StatusNoContent)
		default: // in progress elsewhere, for example
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
}

func Example() {
	server := httptest.NewServer(receiver(memstore.New(nil), func(m *broker.Message) string {
		fmt.Println("booked", m.Topic, string(m.Body))
		return "booked"
	}))
	defer server.Close()

	hooks, err := webhookbroker.New(webhookbroker.Options{
		Source:    "https://shop.example/orders",
		Default:   webhookbroker.Endpoint{URL: server.URL, Secrets: []string{secret}},
		Allow:     []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // both are for this example only
		AllowHTTP: true,
	})
	if err != nil {
		panic(err)
	}
	defer hooks.Close()
	m := &broker.Message{ID: "7d1f", Topic: "order.paid", OrderingKey: "order 7", Body: []byte(`{"order":7}`)}
	for range 2 { // as if the first answer was lost
		if errs := hooks.Publish(context.Background(), []*broker.Message{m}); errs != nil {
			panic(errs[0])
		}
	}
	// Output: booked order.paid {"order":7}
}
