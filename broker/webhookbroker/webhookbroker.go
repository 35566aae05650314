// Package webhookbroker publishes messages as webhooks: a POST for each message, as a CloudEvent (version 1.0, binary
// mode), signed in the way of Standard Webhooks.
//
//	hooks, err := webhookbroker.New(webhookbroker.Options{
//		Source:  "https://shop.example/orders",
//		Default: webhookbroker.Endpoint{URL: "https://partner.example/hooks", Secrets: []string{secret}},
//	})
//	...
//	relay := &outbox.Relay{Store: store, Publisher: hooks}
//
// A receiver checks the signature by [Verify], and handles each webhook-id once: it is the message's ID, percent-encoded,
// and the same in all attempts. docs/webhooks.md has the headers, and receivers in other languages.
//
// # Promise
//
// A message is confirmed by an answer with a status of the 2xx, and by nothing else. Messages with an equal ordering key
// go one after another, and none goes in the same call behind one that failed. Redirects are not followed.
//
// An answer about the message (400, 406, 411 to 417, 422, 431) is [broker.ErrInvalid]: the message will never be
// accepted. All others tell of the receiver or of the moment, and the message may be tried again: also a 401, 404 or
// 410, which a receiver that is set up wrong says to all messages. After a network error, a timeout, a 429 or a
// 503 nothing more is sent to that endpoint in the same call. A Retry-After is kept to, up to a minute: until then,
// messages to the endpoint fail at once.
//
// # Networks
//
// Connections go to public addresses only, unless Options.Allow has their network. What is checked is the address that is
// connected to, after the name was resolved, so a name that resolves to another address the next time opens nothing.
// The environment's proxies are not used: a proxy would connect to what it likes.
//
// # Limits
//
// The signature covers the ID, the time of sending and the body: the other headers, the topic among them, are as
// trustworthy as the connection. A topic has one endpoint: fan-out to many receivers is a message for each of them.
package webhookbroker

import (
	"cmp"
	"context"
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

// Options say where messages go. Source is mandatory, and so is a Default or a topic.
type Options struct {
	// Source is the source of the CloudEvents: a URI that names who sends them. Source and ID together name an event.
	Source string

	Topics  map[string]Endpoint // where the messages of a topic go
	Default Endpoint            // where all others go; without a URL, they are an error, and can be tried again

	// Allow are networks that may be connected to although they are not public: 10.1.2.0/24, or 127.0.0.0/8 in a test.
	Allow []netip.Prefix

	// AllowHTTP allows URLs with http: whoever is on the way can read the messages, and answer.
	AllowHTTP bool

	// Timeout is for one request, from connecting to the end of the answer. Default 5 seconds: half of what a relay gives
	// to a batch by default.
	Timeout time.Duration

	// Concurrent is how many requests go to an endpoint at once. Default 16.
	Concurrent int

	TLS *tls.Config // the certificates of private receivers, and our own; default: those of the system
}

// Endpoint is a receiver.
type Endpoint struct {
	URL string // https://..., without a user and a password

	// Secrets sign, each: "whsec_" and 24 to 64 bytes in base64. Two, while a receiver changes from one to the other.
	Secrets []string
}

// New returns a publisher. An error, which is [broker.ErrInvalid], says which option to change. Nothing is connected yet.
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
	other     *endpoint // nil: there is none
	timeout   time.Duration
	transport *http.Transport
	closed    atomic.Bool
}

// endpoint is an Endpoint that was checked.
type endpoint struct {
	hook.Place
	secrets [][]byte
	slots   chan struct{}
	resting atomic.Int64 // until when it has asked to be left alone, in nanoseconds since 1970
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

// Publish sends messages, those of different ordering keys beside each other.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	c := &call{publisher: p, ms: ms, errs: make([]error, len(ms)), down: make(map[*endpoint]error)}
	c.all(ctx)
	if errors.Join(c.errs...) == nil {
		return nil
	}
	return c.errs
}
