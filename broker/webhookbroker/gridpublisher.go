package webhookbroker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// EventGridOptions configures a publisher to Azure Event Grid. Endpoint, Source
// and either Key or Token are mandatory.
type EventGridOptions struct {
	// Endpoint is the URL of a custom topic or a domain whose input schema is
	// CloudEvents 1.0: https://<topic>.<region>.eventgrid.azure.net/api/events.
	Endpoint string

	Source string // of the CloudEvents, as in Options

	Key string // an access key

	// Token returns a token of Microsoft Entra ID for
	// https://eventgrid.azure.net/.default, for example from a TokenCredential of
	// the Azure SDK. It is called for each request.
	Token func(context.Context) (string, error)

	Timeout time.Duration // of one request; default: 5 seconds

	Allow     []netip.Prefix // as in Options: networks of private endpoints
	AllowHTTP bool           // as in Options
	TLS       *tls.Config    // default: the system roots
}

const (
	gridAPI       = "2018-01-01"
	gridMaxBody   = 1_000_000 // bytes of a request: Event Grid takes 1 MB
	gridMaxEvents = 500
	gridHeaders   = "onceheader" // attribute with the headers whose names no attribute can have
)

// NewEventGrid returns a publisher that sends CloudEvents to Azure Event Grid, in
// batches. It does not connect.
//
// A message is confirmed by a 200, with which Event Grid has stored it. If a
// batch is refused because of its contents, its messages are sent one by one: a
// 400 or 413 is then a [broker.ErrInvalid]. Event Grid keeps no order, and drops
// no copies. Its subscribers know a message by the source and the ID: see
// [CloudEvents].
//
// A body with a JSON content type is the data of its event, without
// insignificant spaces. Any other body is sent in base64.
func NewEventGrid(o EventGridOptions) (broker.Publisher, error) {
	if _, err := url.Parse(o.Source); err != nil || o.Source == "" {
		return nil, invalid("the Source %.80q is no URI: name who sends the events, like https://shop.example/orders", o.Source)
	}
	if (o.Key == "") == (o.Token == nil) {
		return nil, invalid("Event Grid needs a Key or a Token, and not both")
	}
	if o.Timeout < 0 {
		return nil, invalid("Timeout must not be negative")
	}
	to, err := hook.NewPlace(o.Endpoint, o.AllowHTTP)
	if err != nil {
		return nil, invalid("%v", err)
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, invalid("the Endpoint has no valid URL")
	}
	if q := u.Query(); q.Get("api-version") == "" {
		q.Set("api-version", gridAPI)
		u.RawQuery = q.Encode()
	}
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return &gridPublisher{options: o, place: to, url: u.String(), transport: hook.Transport(o.Allow, o.Timeout, 4, o.TLS)}, nil
}

type gridPublisher struct {
	options   EventGridOptions
	place     hook.Place
	url       string
	transport *http.Transport
	closed    atomic.Bool
	resting   atomic.Int64 // the end of its Retry-After, in nanoseconds since 1970
}

// gridBatch are encoded messages that fit into one request.
type gridBatch struct {
	events  [][]byte
	indexes []int // of their messages
	size    int
}

// Publish sends messages in batches.
func (p *gridPublisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs, failed := make([]error, len(ms)), false
	var batch gridBatch
	var down error // why nothing more is sent
	flush := func() {
		if down == nil && len(batch.events) > 0 {
			down = p.sendAll(ctx, batch, errs)
		} else {
			for _, i := range batch.indexes {
				errs[i] = fmt.Errorf("webhookbroker: not sent: %w", down)
			}
		}
		batch = gridBatch{}
	}
	for i, m := range ms {
		event, err := p.encode(m)
		if err != nil {
			errs[i] = err
			continue
		}
		if len(batch.events) == gridMaxEvents || batch.size+len(event)+1 > gridMaxBody-2 {
			flush()
		}
		batch.events, batch.indexes = append(batch.events, event), append(batch.indexes, i)
		batch.size += len(event) + 1
	}
	flush()
	for _, err := range errs {
		failed = failed || err != nil
	}
	if !failed {
		return nil
	}
	return errs
}

// sendAll sends a batch, and its messages one by one if the batch is refused
// because of one of them. It returns why nothing more should be sent, or nil.
func (p *gridPublisher) sendAll(ctx context.Context, batch gridBatch, errs []error) (down error) {
	status, err := p.post(ctx, batch.events)
	if err == nil {
		return nil
	}
	about := status != 0 && isAboutTheMessage(status)
	if about && len(batch.events) > 1 {
		for k, i := range batch.indexes {
			if down != nil {
				errs[i] = fmt.Errorf("webhookbroker: not sent: %w", down)
				continue
			}
			down = p.sendAll(ctx, gridBatch{events: batch.events[k : k+1], indexes: batch.indexes[k : k+1]}, errs)
		}
		return down
	}
	if about {
		errs[batch.indexes[0]] = fmt.Errorf("%w: %w", broker.ErrInvalid, err)
		return nil
	}
	for _, i := range batch.indexes {
		errs[i] = err
	}
	return err
}

// post sends events, and returns the status if there was an answer.
func (p *gridPublisher) post(ctx context.Context, events [][]byte) (status int, err error) {
	if p.closed.Load() {
		return 0, errClosed
	}
	if until := time.Unix(0, p.resting.Load()); time.Now().Before(until) {
		return 0, fmt.Errorf("webhookbroker: not sent: %s asked to retry after %s", p.place.Host, until.UTC().Format(time.RFC3339))
	}
	ctx, cancel := context.WithTimeout(ctx, p.options.Timeout)
	defer cancel()
	body := append(append([]byte("["), bytes.Join(events, []byte(","))...), ']')
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("webhookbroker: %s: the URL is not usable", p.place.Host)
	}
	r.Header.Set("Content-Type", batchType+"; charset=utf-8")
	r.Header.Set("User-Agent", "once")
	if p.options.Token == nil {
		r.Header.Set("aeg-sas-key", p.options.Key)
	} else {
		token, err := p.options.Token(ctx)
		if err != nil {
			return 0, fmt.Errorf("webhookbroker: no token for %s: %w", p.place.Host, err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return 0, fmt.Errorf("webhookbroker: %s: %w", p.place.Host, err)
	}
	defer answer.Body.Close()
	status = answer.StatusCode
	if status == http.StatusOK {
		hook.Drain(answer.Body)
		return status, nil
	}
	if status == http.StatusSwitchingProtocols {
		return 0, fmt.Errorf("webhookbroker: %s switched to another protocol", p.place.Host)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if d := retryAfter(answer.Header.Get("Retry-After"), time.Now()); d > 0 {
			p.resting.Store(time.Now().Add(d).UnixNano())
		}
	}
	return status, fmt.Errorf("webhookbroker: %s answered %d %s%s", p.place.Host, status, http.StatusText(status), p.place.Excerpt(answer.Body))
}

// encode returns a message as a CloudEvent in JSON.
func (p *gridPublisher) encode(m *broker.Message) ([]byte, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	event := map[string]any{"specversion": "1.0", "id": m.ID, "source": p.options.Source, "type": m.Topic}
	if m.OrderingKey != "" {
		event["partitionkey"] = m.OrderingKey
	}
	if !m.Time.IsZero() {
		event["time"] = m.Time.UTC().Format(time.RFC3339Nano)
	}
	others := make(map[string]string)
	for name, value := range m.Header {
		switch {
		case name == contentType && isMediaType(value):
			event["datacontenttype"] = value
		case isAttribute(name) && name != gridHeaders && value != "":
			event[name] = value
		default:
			others[name] = value
		}
	}
	if len(others) > 0 {
		text, err := json.Marshal(others)
		if err != nil {
			return nil, invalid("the headers of message %q: %v", m.ID, err)
		}
		event[gridHeaders] = string(text)
	}
	kind, _ := event["datacontenttype"].(string)
	switch {
	case isJSON(mediaType(http.Header{"Content-Type": {kind}})) && json.Valid(m.Body):
		event["data"] = json.RawMessage(m.Body)
	case len(m.Body) > 0:
		event["data_base64"] = base64.StdEncoding.EncodeToString(m.Body)
	}
	text, err := json.Marshal(event)
	if err != nil {
		return nil, invalid("message %q: %v", m.ID, err)
	}
	return text, nil
}

// Close ends the use of the publisher.
func (p *gridPublisher) Close() error {
	p.closed.Store(true)
	p.transport.CloseIdleConnections()
	return nil
}
