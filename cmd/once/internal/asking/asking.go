// Package asking asks by HTTP for the outcome of unknown work. It sends a
// question to the URL of an operation and treats the answer as the result of
// Lookup, so that services in any language can be asked. docs/asking.md
// describes the question, the answers and receivers.
//
// An answer counts only if all of it is valid. Anything else is no answer and
// leaves the record as it is: another status, a timeout, a redirect, an unknown
// field, or the key of another question.
package asking

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/hook"
)

// DefaultTimeout limits one question, from connecting to the end of its answer.
const DefaultTimeout = 5 * time.Second

const (
	maxAnswer = 1 << 20 // bytes, the default limit of an outcome
	idle      = 4       // idle connections per host, the default of AtOnce of a Reconciler
)

// Options configures an Asker. The zero value is valid.
type Options struct {
	Allow     []netip.Prefix // non-public networks to which connections are allowed
	AllowHTTP bool           // allow http URLs, although anyone on the network path can then answer
	Timeout   time.Duration  // default DefaultTimeout
}

// Asker asks about operations.
type Asker struct {
	options   Options
	transport *http.Transport
}

// New returns an Asker. It does not connect.
func New(o Options) *Asker {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	return &Asker{o, hook.Transport(o.Allow, o.Timeout, idle, nil)}
}

// Close closes idle connections.
func (a *Asker) Close() { a.transport.CloseIdleConnections() }

// Endpoint is the destination of questions about an operation.
type Endpoint struct {
	*Asker
	place   hook.Place
	secrets [][]byte
}

// Endpoint validates a URL and the secrets that sign the questions. Its errors
// contain neither.
func (a *Asker) Endpoint(url string, secrets []string) (*Endpoint, error) {
	place, err := hook.NewPlace(url, a.options.AllowHTTP)
	if err != nil {
		return nil, err
	}
	keys, err := hook.Secrets(secrets)
	if err != nil {
		return nil, fmt.Errorf("the endpoint at %s: %w", place.Host, err)
	}
	return &Endpoint{a, place, keys}, nil
}

// question is the body of the request.
type question struct {
	Question       string  `json:"question"`
	Scope          string  `json:"scope"`
	Operation      string  `json:"operation"`
	ID             string  `json:"id"`
	Key            string  `json:"key"`
	Attempt        int64   `json:"attempt"`
	AgeSeconds     float64 `json:"age_seconds"`
	UnknownSeconds float64 `json:"unknown_seconds"`
}

// outcome is the only kind of question. It is signed, so that no webhook can be
// mistaken for one.
const outcome = "outcome"

func questionAbout(r once.Record) question {
	return question{outcome, r.Key.Scope, r.Key.Operation, r.Key.ID, r.Key.String(), r.Attempt,
		max(r.Age, 0).Seconds(), max(-r.LeaseLeft, 0).Seconds()}
}

// ask asks for the outcome of a record.
func (e *Endpoint) ask(ctx context.Context, r once.Record) (Answer, error) {
	body, err := json.Marshal(questionAbout(r))
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.place.URL, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("%s: the request cannot be made", e.place.Host)
	}
	request.Header.Set("User-Agent", "once")
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	hook.Sign(request.Header, e.secrets, "ask_"+rand.Text(), body, time.Now()) // each question gets its own ID, because it needs a fresh answer
	response, err := e.transport.RoundTrip(request)                            // RoundTrip follows no redirects
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", e.place.Host, err)
	}
	defer response.Body.Close()
	answer, err := e.read(response, r.Key.String())
	if err != nil {
		return Answer{}, fmt.Errorf("%s %w", e.place.Host, err)
	}
	return answer, nil
}

func (e *Endpoint) read(response *http.Response, key string) (Answer, error) {
	switch status := response.StatusCode; {
	case status == http.StatusSwitchingProtocols: // the body is the connection, which ignores the context
		return Answer{}, errors.New("asked to switch to another protocol")
	case status != http.StatusOK:
		return Answer{}, fmt.Errorf("answered %d %s%s", status, http.StatusText(status), e.place.Excerpt(response.Body))
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "application/json" {
		return Answer{}, fmt.Errorf("answered with the content type %.40q: it has to be application/json", kind)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("did not end its answer: %w", err)
	case len(text) > maxAnswer:
		return Answer{}, fmt.Errorf("answered with more than %d bytes", maxAnswer)
	}
	answer, err := parse(text, key)
	if err != nil {
		return Answer{}, fmt.Errorf("gave no answer: %w", err)
	}
	return answer, nil
}
