package httponce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/effectively-once/once"
)

// Caller says whose request it is: the tenant or client that was authenticated. Keys of different callers are different
// keys. It is called before anything is read or claimed. An error, or no name at all, is answered with 401: there is no
// caller that all share. It leaves the body of the request alone.
type Caller func(*http.Request) (string, error)

// Decision is what becomes of the key when the handler has answered.
type Decision int

const (
	ByStatus Decision = iota // what the documentation of the package says of the status
	Record                   // the response is the answer, for every repeat
	Release                  // nothing happened: the next request with this key is the first again
	Unknown                  // nobody knows what happened: nothing is run again before somebody finds out
)

// Options are the options of a handler. A nil *Options and the zero value work.
type Options struct {
	// Operation is part of every key. Handlers with the same Operation share the keys of a caller, so that one key at
	// two routes is a mistake that is noticed. Services that share a store and callers need names of their own. Without
	// a slash. Default "http".
	Operation string

	Required bool        // Handler: requests with an unsafe method must have a key. HandlerTx: all must
	Policy   once.Policy // how long repeats wait and are remembered. With Wait: once.NoWait they do not wait

	// OnUnknown says what becomes of a request whose handler died, or answered that it does not know. Default: once.Park,
	// unless there is a Lookup. Resend runs the handler again.
	OnUnknown once.OnUnknown

	// Lookup finds out whether the request with this key happened, and with what response; a nil one is 204. It has
	// nothing to go by but the key. SettleTime and KeyValidFor are what [once.Operation] says of them.
	Lookup                  func(context.Context, once.Key) (r *Response, happened bool, err error)
	SettleTime, KeyValidFor time.Duration

	// Speculative is [once.Operation.Speculative], for HandlerTx: a repeat of a request that is still running may enter the
	// handler, without effect and without an answer of its own. Default false: it enters nothing.
	Speculative bool

	MaxBody     int64    // bytes of a request, default 1 MiB
	MaxResponse int      // bytes of a response that are recorded; default 256 KiB, never more than the store keeps
	Headers     []string // of responses, replayed besides the usual ones

	// Fingerprint returns what two requests with one key must have in common; method, path and query are added to it.
	// Default: the body as it is. It neither keeps nor changes body; its error goes to the client, with 400.
	// [CanonicalJSON] takes no notice of the order and the spaces in JSON.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)

	Decide   func(r *http.Request, status int) Decision // nil: ByStatus
	CheckKey func(key string) error                     // refuses keys, with 400 and its error; see [RefuseGuessable]
	Limits   Limits

	// Admit, if it is not nil, is asked for room for a key before it is claimed, and does not ask the store. Where wait is
	// above 0 there is none: a new key gets 429, to come back after it, and nothing is claimed. A key that the store
	// knows is let in all the same, which costs a look. Else leave is called once when the request is over, with whether
	// the key may be in the store now and was not before. Made for the Admit of janitor.Quota.
	Admit func(once.Key) (leave func(kept bool), wait time.Duration)

	Ring *Ring // seals what is recorded, and keys the fingerprints. Default: neither

	// FailOpen runs the handler unguarded while the store cannot be reached, instead of answering 503. Then repeats have
	// as many effects as they are. Not for HandlerTx, which has no transaction then.
	FailOpen bool

	// Docs is where the types of problems are documented. Default: this project's page.
	Docs string
}

const (
	defaultMaxBody     = 1 << 20
	defaultMaxResponse = 256 << 10
	defaultDocs        = "https://github.com/effectively-once/once/blob/main/docs/http.md"
	roomForHead        = 16 << 10 // of what the store keeps: status and headers
)

// settings are Options made ready.
type settings struct {
	Options
	store   once.Store
	caller  Caller
	op      *once.Operation[*Response]
	headers map[string]bool
	limiter *limiter
	bodies  *bodies
}

// newSettings panics where a program is wrong, like http.Handle.
func newSettings(s once.Store, caller Caller, o *Options) *settings {
	if s == nil || caller == nil {
		panic("httponce: the store and the function that says who calls are mandatory")
	}
	g := &settings{store: s, caller: caller, headers: make(map[string]bool), bodies: &bodies{held: make(map[once.Key]*heldBody)}}
	if o != nil {
		g.Options = *o
	}
	g.Operation = cmp.Or(g.Operation, "http")
	g.MaxBody = cmp.Or(g.MaxBody, defaultMaxBody)
	g.MaxResponse = min(cmp.Or(g.MaxResponse, defaultMaxResponse), max(s.Options().MaxOutcome-roomForHead, 0))
	g.Docs = cmp.Or(g.Docs, defaultDocs)
	if g.OnUnknown == 0 && g.Lookup == nil {
		g.OnUnknown = once.Park
	}
	for _, name := range append(replayed, g.Headers...) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if neverReplayed[canonical] || strings.HasPrefix(canonical, http.TrailerPrefix) {
			panic(fmt.Sprintf("httponce: the header %s is for one response and is never replayed: remove it from Options.Headers", canonical))
		}
		if !validHeader(name) {
			panic(fmt.Sprintf("httponce: %q in Options.Headers is not the name of a header", name))
		}
		g.headers[canonical] = true
	}
	if g.MaxBody < 0 || g.MaxResponse < 0 {
		panic("httponce: MaxBody and MaxResponse are not negative")
	}
	g.limiter = newLimiter(g.Limits)
	g.op = &once.Operation[*Response]{Name: g.Operation, Policy: g.Policy, OnUnknown: g.OnUnknown, SettleTime: g.SettleTime, KeyValidFor: g.KeyValidFor,
		Speculative: g.Speculative, Codec: codec{g.Ring}}
	if g.Lookup != nil {
		g.op.Lookup = g.lookup
	}
	_, err := g.op.Ask(context.Background(), s, once.Record{}) // checks the declaration, and asks about nothing
	if err = errors.Join(err, once.Key{Operation: g.Operation, ID: "any"}.Validate()); err != nil {
		panic("httponce: the options make no sense: " + err.Error())
	}
	return g
}

// lookup gives what was found the form of what is recorded.
func (g *settings) lookup(ctx context.Context, key once.Key) (*Response, bool, error) {
	found, happened, err := g.Lookup(ctx, key)
	if found == nil {
		found = &Response{Status: http.StatusNoContent}
	}
	some := *found
	some.Header = forReplay(found.Header, g.headers)
	if some.Header.Get("Content-Type") == "" && len(some.Body) > 0 {
		some.Header.Set("Content-Type", http.DetectContentType(some.Body))
	}
	some.key = key.UUID()
	return &some, happened, err
}

func (g *settings) decide(r *http.Request, status int) Decision {
	if g.Decide != nil {
		if d := g.Decide(r, status); d != ByStatus {
			return d
		}
	}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return Release
	case status >= 500:
		return Unknown
	}
	return Record
}
