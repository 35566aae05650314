// Package webhookbroker receives webhooks, and publishes messages as webhooks.
//
// A [Receiver] is the [http.Handler] of the requests of one sender, and the
// source of a consumer. It answers 2xx only after the commit:
//
//	payments, err := webhookbroker.NewReceiver("stripe", webhookbroker.Stripe(secret), nil)
//	...
//	mux.Handle("/hooks/stripe", payments)
//	billing := &inbox.Consumer{Name: "billing", Source: payments, Handler: handler}
//
// [New] returns a publisher: a POST for each message, as a CloudEvent (version
// 1.0, binary mode), signed as in Standard Webhooks.
//
//	hooks, err := webhookbroker.New(webhookbroker.Options{
//		Source:  "https://shop.example/orders",
//		Default: webhookbroker.Endpoint{URL: "https://partner.example/hooks", Secrets: []string{secret}},
//	})
//	...
//	relay := &outbox.Relay{Store: store, Publisher: hooks}
//
// [NewEventGrid] returns a publisher to Azure Event Grid.
//
// A receiver checks the signature with [StandardWebhooks], or with [Verify], and
// handles each webhook-id once. The webhook-id is the ID of the message,
// percent-encoded, and the same in all attempts. docs/webhooks.md describes the
// headers, and receivers in other languages.
//
// # Promise
//
// A receiver answers 2xx only for requests whose messages a consumer has settled.
// The sender repeats all others, with the same IDs, so the consumer finds what
// it has handled. A sender that does not repeat, as GitHub, loses what was not
// answered with 2xx, unless a person repeats it.
//
// Of the publisher that New returns, only a 2xx response confirms a message.
// Messages with an equal ordering key are sent one after another. If one fails,
// the later ones of the same call are not sent. Redirects are not followed.
//
// A response about the message (400, 406, 411 to 417, 422, 431) is
// [broker.ErrInvalid]: the message will never be accepted. After any other
// response, the message may be retried. That includes 401, 404 and 410, which a
// misconfigured receiver returns for all messages. After a network error, a
// timeout, a 429 or a 503, nothing more is sent to the endpoint in the same
// call. A Retry-After is respected up to a minute: until then, messages to the
// endpoint fail at once.
//
// # Networks
//
// Connections go to public addresses only, unless Options.Allow has their
// network. The check is made on the resolved address of the connection, so a
// name that resolves to another address later does not bypass it. Proxies of
// the environment are not used, because they would connect to any address.
//
// # Limits
//
// The signature covers the ID, the time of sending and the body. The other
// headers, including the topic, are as trustworthy as the connection. A topic has
// one endpoint. To reach several receivers, publish a message for each.
package webhookbroker

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// Options configures a publisher. Source is mandatory, and so is a Default or a
// topic.
type Options struct {
	// Source is the source of the CloudEvents: a URI that identifies the sender.
	// Source and ID together identify an event.
	Source string

	Topics  map[string]Endpoint // endpoints by topic
	Default Endpoint            // the endpoint of other topics; without a URL they are an error that may be retried

	// Allow lists networks to which connections are allowed although they are not
	// public, such as 10.1.2.0/24, or 127.0.0.0/8 in a test.
	Allow []netip.Prefix

	// AllowHTTP allows http URLs. Anyone on the network path can then read the
	// messages, and respond to them.
	AllowHTTP bool

	// Timeout limits one request, from connecting to the end of the response.
	// Default: 5 seconds, half of the default limit of a relay for a batch.
	Timeout time.Duration

	// Concurrent is the maximum number of concurrent requests to an endpoint.
	// Default: 16.
	Concurrent int

	TLS *tls.Config // for private CAs and client certificates; default: the system roots
}

// Endpoint is a receiver.
type Endpoint struct {
	URL string // https://..., without user and password

	// Secrets each sign: "whsec_" and 24 to 64 bytes in base64. Use two while a
	// receiver changes from one to the other.
	Secrets []string
}

// New returns a publisher. It does not connect. An error is a [broker.ErrInvalid]
// that says which option to change.
func New(o Options) (broker.Publisher, error) {
	if _, err := url.Parse(o.Source); err != nil || o.Source == "" {
		return nil, invalid("the Source %.80q is no URI: name who sends the events, like https://shop.example/orders", o.Source)
	}
	if o.Timeout < 0 || o.Concurrent < 0 {
		return nil, invalid("Timeout and Concurrent must not be negative")
	}
	p := &publisher{source: o.Source, timeout: cmp.Or(o.Timeout, 5*time.Second), topics: make(map[string]*endpoint)}
	atOnce := cmp.Or(o.Concurrent, 16)
	var err error
	for topic, to := range o.Topics {
		if p.topics[topic], err = newEndpoint(to, o.AllowHTTP, atOnce); err != nil {
			return nil, fmt.Errorf("%w (the endpoint of topic %q)", err, topic)
		}
	}
	if o.Default.URL != "" || len(o.Default.Secrets) > 0 {
		if p.other, err = newEndpoint(o.Default, o.AllowHTTP, atOnce); err != nil {
			return nil, err
		}
	} else if len(p.topics) == 0 {
		return nil, invalid("there is no endpoint: give a Default, or Topics")
	}
	p.transport = hook.Transport(o.Allow, p.timeout, atOnce, o.TLS)
	return p, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: webhookbroker: %s", broker.ErrInvalid, fmt.Sprintf(format, args...))
}

type publisher struct {
	source    string
	topics    map[string]*endpoint
	other     *endpoint // of other topics; may be nil
	timeout   time.Duration
	transport *http.Transport
	closed    atomic.Bool
}

// endpoint is a checked Endpoint.
type endpoint struct {
	hook.Place
	secrets [][]byte
	slots   chan struct{}
	resting atomic.Int64 // the end of its Retry-After, in nanoseconds since 1970
}

func newEndpoint(e Endpoint, allowHTTP bool, atOnce int) (*endpoint, error) {
	to, err := hook.NewPlace(e.URL, allowHTTP)
	if err != nil {
		return nil, invalid("%v", err)
	}
	secrets, err := hook.Secrets(e.Secrets)
	if err != nil {
		return nil, invalid("the endpoint at %s: %v", to.Host, err)
	}
	return &endpoint{Place: to, secrets: secrets, slots: make(chan struct{}, atOnce)}, nil
}

var errClosed = errors.New("webhookbroker: the publisher was closed")

// Close ends the use of the publisher.
func (p *publisher) Close() error {
	p.closed.Store(true)
	p.transport.CloseIdleConnections()
	return nil
}
