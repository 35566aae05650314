package webhookbroker_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/broker/webhookbroker"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// local is the network of the receivers of tests.
var local = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// serve starts a receiver, and returns options that trust it.
func serve(tb testing.TB, h http.HandlerFunc) webhookbroker.Options {
	tb.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that were not needed in the end
	server.StartTLS()
	tb.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	return webhookbroker.Options{
		Source:  "https://shop.example/orders",
		Default: webhookbroker.Endpoint{URL: server.URL, Secrets: []string{secret}},
		Allow:   local,
		TLS:     &tls.Config{RootCAs: trusted},
		Timeout: time.Minute,
	}
}

func publisher(tb testing.TB, o webhookbroker.Options) broker.Publisher {
	tb.Helper()
	p, err := webhookbroker.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// The receiver publishes verified messages to a queue, so that the suite checks
// all their fields.
func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			b := membroker.New(nil)
			queue := b.Queue("orders")
			o := serve(tb, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					tb.Error(err)
				}
				m, err := webhookbroker.Verify([]string{secret}, r.Header, body, 0)
				if err != nil {
					tb.Error(err)
					http.Error(w, err.Error(), http.StatusUnauthorized)
					return
				}
				if errs := b.Publisher().Publish(r.Context(), []*broker.Message{m}); errs != nil {
					http.Error(w, errs[0].Error(), http.StatusNotFound)
				}
			})
			return brokertest.Place{
				Publisher:   publisher(tb, o),
				Source:      queue,
				Topic:       "orders",
				DeadLetters: func(testing.TB) []*broker.Message { return b.Messages("orders.dead") },
				Unroutable:  "nowhere",
			}
		},
		Confirms: true,
		Quiet:    20 * time.Millisecond,
	})
}
