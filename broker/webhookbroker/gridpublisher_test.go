package webhookbroker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/membroker"
)

const shop = "https://shop.example/orders"

// topicDouble takes requests as a topic of Event Grid does.
func topicDouble(tb testing.TB, take func(http.ResponseWriter, []*broker.Message)) EventGridOptions {
	tb.Helper()
	format := CloudEvents(AuthorizeFunc(func(r *http.Request) error {
		if r.Header.Get("aeg-sas-key") != "a key" && r.Header.Get("Authorization") != "Bearer a token" {
			return ErrUnverified
		}
		return nil
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Query().Get("api-version") != "2018-01-01" || r.Header.Get("Content-Type") != "application/cloudevents-batch+json; charset=utf-8" {
			tb.Errorf("%v %v %v", err, r.URL, r.Header)
		}
		if len(body) > 1<<20 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		got, err := format.parse(&incoming{Request: r, body: body, now: time.Now(), options: ReceiverOptions{MaxEvents: 5000}})
		if err != nil {
			tb.Errorf("%v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for _, m := range got.messages {
			m.ID = strings.TrimPrefix(m.ID, shop+" ")
			delete(m.Header, "source")
		}
		take(w, got.messages)
	}))
	tb.Cleanup(server.Close)
	return EventGridOptions{Endpoint: server.URL + "/api/events", Source: shop, Key: "a key", AllowHTTP: true,
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: time.Minute}
}

func gridTo(tb testing.TB, o EventGridOptions) broker.Publisher {
	tb.Helper()
	p, err := NewEventGrid(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { settled(tb, p.Close()) })
	return p
}

// The double publishes what it gets to a queue, so that the suite checks all
// fields. IDs of 255 bytes and bodies of 1 MiB are above what Event Grid and
// the identity of an event take.
func TestEventGridPublisherConformance(t *testing.T) {
	h := brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			b := membroker.New(nil)
			queue := b.Queue("orders")
			o := topicDouble(tb, func(w http.ResponseWriter, ms []*broker.Message) {
				if errs := b.Publisher().Publish(context.Background(), ms); errs != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			})
			return brokertest.Place{Publisher: gridTo(tb, o), Source: queue, Topic: "orders",
				DeadLetters: func(testing.TB) []*broker.Message { return b.Messages("orders.dead") }}
		},
		Quiet: 20 * time.Millisecond,
	}
	for _, c := range brokertest.Cases(h) {
		if c.Name == "message/body" || c.Name == "message/long" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if skipped, err := c.Check(t); err != nil {
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			} else if skipped != "" {
				t.Skip(skipped)
			}
		})
	}
}

func TestEventGridPublisherIsolatesWhatIsRefused(t *testing.T) {
	var requests atomic.Int64
	o := topicDouble(t, func(w http.ResponseWriter, ms []*broker.Message) {
		requests.Add(1)
		for _, m := range ms {
			if m.ID == "2" {
				w.WriteHeader(http.StatusBadRequest)
			}
		}
	})
	large := make([]byte, 1<<20)
	ms := []*broker.Message{{ID: "1", Topic: "t"}, {ID: "2", Topic: "t"}, {ID: "3", Topic: "t"}, {ID: "4", Topic: "t", Body: large}, nil,
		{ID: "5", Topic: "t", Header: map[string]string{"content-type": "application/json"}, Body: []byte(`{"a": 1}`)}}
	errs := gridTo(t, o).Publish(t.Context(), ms)
	for i, err := range errs {
		if bad := i == 1 || i == 3 || i == 4; bad != errors.Is(err, broker.ErrInvalid) || !bad && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if n := requests.Load(); n != 5 { // three at once, three alone, and the last
		t.Errorf("%d requests", n)
	}
}

func TestEventGridPublisherWaitsAfterRetryAfter(t *testing.T) {
	for _, status := range []int{429, 503, 500, 401, 202, 302} {
		var requests atomic.Int64
		o := topicDouble(t, func(w http.ResponseWriter, ms []*broker.Message) {
			requests.Add(1)
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(status)
		})
		o.Key, o.Token = "", func(context.Context) (string, error) { return "a token", nil }
		p := gridTo(t, o)
		for range 2 {
			errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "t"}})
			if len(errs) != 1 || errs[0] == nil || errors.Is(errs[0], broker.ErrInvalid) {
				t.Errorf("%d: %v", status, errs)
			}
		}
		if n, rests := requests.Load(), status == 429 || status == 503; rests != (n == 1) {
			t.Errorf("%d: %d requests", status, n)
		}
	}
}

func TestEventGridPublishersAreRefused(t *testing.T) {
	token := func(context.Context) (string, error) { return "", nil }
	for what, o := range map[string]EventGridOptions{
		"nothing":          {},
		"no source":        {Endpoint: "https://a.example/api/events", Key: "k"},
		"no authorization": {Endpoint: "https://a.example/api/events", Source: shop},
		"two of them":      {Endpoint: "https://a.example/api/events", Source: shop, Key: "k", Token: token},
		"http":             {Endpoint: "http://a.example/api/events", Source: shop, Key: "k"},
		"no URL":           {Endpoint: "a", Source: shop, Key: "k"},
		"negative":         {Endpoint: "https://a.example/api/events", Source: shop, Key: "k", Timeout: -1},
	} {
		if p, err := NewEventGrid(o); !errors.Is(err, broker.ErrInvalid) || p != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
