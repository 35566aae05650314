package httponce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
)

// Caller returns the authenticated tenant or client that made the request. Keys
// of different callers are different keys. It is called before anything is read
// or claimed, and must not read the body. If it returns an error or an empty
// name, the response is 401: no caller is shared by all.
type Caller func(*http.Request) (string, error)

// Decision says what happens to the key after the handler has responded.
type Decision int

const (
	ByStatus Decision = iota // the rule for its status in the package documentation
	Record                   // record the response and replay it
	Release                  // nothing happened: the key is free
	Unknown                  // the outcome is unknown: nothing runs until it is determined
)

// Options configures a guard. A nil *Options and the zero value are valid.
type Options struct {
	// Operation is part of every key. Handlers with the same Operation share the
	// keys of a caller, so a key that is used at two routes by mistake is
	// detected. Services that share a store and callers need different names. It
	// contains no slash. Default: "http".
	Operation string

	Required bool        // Handler: requests with an unsafe method must have a key. HandlerTx: all must
	Policy   once.Policy // how long repeats wait, and how long keys are kept

	// Key, if set, names a request with an unsafe method that has no key, for
	// clients that send none. Its result is what makes the request one piece of
	// work for its caller, such as the number of an order. The guard digests it
	// with method and path. Two requests with one result are one request, for as
	// long as keys are kept, so include whatever tells two orders apart. If the
	// result is empty, the request counts as one without a key. An error is sent
	// to the client with 400. Key gets the body, which is therefore read before
	// Limits apply, and must not keep or change it.
	Key func(r *http.Request, body []byte) (string, error)

	// TellLifetime adds the header Idempotency-Key-Lifetime to each response:
	// for how many seconds a key is honoured after its request is done, and, as
	// the parameter answer, for how many its response is replayed. See
	// [LifetimeHeader].
	TellLifetime bool

	// OnUnknown says what happens to a request whose handler died or reported an
	// unknown outcome. Resend runs the handler again. Default: once.Park, unless
	// Lookup is set.
	OnUnknown once.OnUnknown

	// Lookup reports whether the request with a key happened, and with what
	// response; nil means 204. It gets only the key. SettleTime and KeyValidFor
	// are as in [once.Operation].
	Lookup                  func(context.Context, once.Key) (r *Response, happened bool, err error)
	SettleTime, KeyValidFor time.Duration

	// Speculative is [once.Operation.Speculative] for HandlerTx: a repeat of a
	// running request may enter the handler, without effect and without a
	// response of its own. Default: false, repeats do not enter.
	Speculative bool

	MaxBody     int64 // bytes of a request, default 1 MiB
	MaxResponse int   // bytes of a recorded response; default 256 KiB, at most what the store keeps

	// Headers are response headers to replay besides the usual ones, which are
	// Cache-Control, Content-Disposition, Content-Encoding, Content-Language,
	// Content-Location, Content-Type, ETag, Last-Modified, Link, Location and
	// Vary. Set-Cookie, Authorization, Date, Content-Length and hop-by-hop
	// headers are never replayed. Nor is what outer middleware has set, except
	// Content-Type: it sets its headers for each response, and they win over
	// recorded ones.
	Headers []string

	// Compare are request headers that a repeat must have in common with the
	// first request, besides method, target and body. Host stands for the host
	// name. Default: Content-Range, the headers of conditional requests
	// (If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since) and of
	// another method (X-HTTP-Method, X-HTTP-Method-Override, X-Method-Override).
	// An empty list compares none. Where an [http.ServeMux] finds the guard by
	// a pattern with a host, that host is always compared.
	Compare []string

	// Fingerprint returns what requests with the same key must have in common.
	// Method, target and Compare are added to it. The target is the path and the
	// query that the client has sent, even if outer handlers, such as that of
	// [http.StripPrefix], have changed the URL. It must not keep or change body.
	// Its error is sent to the client with 400. Default: the unchanged body.
	// [CanonicalJSON] ignores order and white space in JSON.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)

	Decide   func(r *http.Request, status int) Decision // nil: ByStatus
	CheckKey func(key string) error                     // its error refuses the key with 400; see [RefuseGuessable]
	Limits   Limits

	// Admit, if set, reserves room for a key before it is claimed, without
	// asking the store. If wait is above 0 there is no room: a new key gets 429
	// with that delay, and nothing is claimed. A known key is admitted
	// nevertheless, at the cost of one read. Otherwise leave is called once
	// when the request ends, with kept set if the key is new and may now be in
	// the store. janitor.Quota has a matching Admit.
	Admit func(once.Key) (leave func(kept bool), wait time.Duration)

	Ring *Ring // seals responses and keys fingerprints; default: neither

	// FailOpen runs the handler unguarded while the store cannot be reached,
	// instead of responding with 503. Repeats then have repeated effects. It does
	// not apply to HandlerTx, which needs the transaction.
	FailOpen bool

	// Docs is the URL that documents the problem types. Default: this project's
	// page.
	Docs string
}

const (
	defaultMaxBody     = 1 << 20
	defaultMaxResponse = 256 << 10
	defaultDocs        = "https://github.com/effectively-once/once/blob/main/docs/http-problems.md"
	roomForHead        = 16 << 10 // bytes of a record for the status and headers

	defaultKeepOutcome, defaultKeepKey = 3 * 24 * time.Hour, 30 * 24 * time.Hour
)

// settings are the checked Options of a guard, with defaults.
type settings struct {
	Options
	store    once.Store
	caller   Caller
	op       *once.Operation[*recording]
	headers  map[string]bool
	limiter  *limiter
	bodies   *bodies
	lifetime []string               // the value of LifetimeHeader; nil: it is not sent
	mistake  atomic.Pointer[string] // in how the guard is mounted; nil: none was noticed
}

// newSettings panics if its arguments are invalid, like http.Handle.
func newSettings(s once.Store, caller Caller, o *Options) *settings {
	if s == nil || caller == nil {
		panic("httponce: the store and the function that says who calls are mandatory")
	}
	g := &settings{store: s, caller: caller, headers: make(map[string]bool), bodies: newBodies()}
	if o != nil {
		g.Options = *o
	}
	g.Operation = cmp.Or(g.Operation, "http")
	g.MaxBody = cmp.Or(g.MaxBody, defaultMaxBody)
	g.MaxResponse = min(cmp.Or(g.MaxResponse, defaultMaxResponse), max(s.Options().MaxOutcome-roomForHead, 0))
	g.Docs = cmp.Or(g.Docs, defaultDocs)
	g.Policy.KeepOutcome = cmp.Or(g.Policy.KeepOutcome, defaultKeepOutcome)
	g.Policy.KeepKey = cmp.Or(g.Policy.KeepKey, max(defaultKeepKey, g.Policy.KeepOutcome))
	if g.TellLifetime {
		g.lifetime = []string{fmt.Sprintf("%d;answer=%d", int64(g.Policy.KeepKey.Seconds()), int64(g.Policy.KeepOutcome.Seconds()))}
	}
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
	if g.Compare == nil {
		g.Compare = compared
	}
	g.Compare = canonicalHeaders(g.Compare)
	for _, name := range g.Compare {
		if !validHeader(name) || name == KeyHeader {
			panic(fmt.Sprintf("httponce: %q in Options.Compare is not a header that requests can be compared by", name))
		}
	}
	g.limiter = newLimiter(g.Limits)
	g.op = &once.Operation[*recording]{Name: g.Operation, Policy: g.Policy, OnUnknown: g.OnUnknown, SettleTime: g.SettleTime, KeyValidFor: g.KeyValidFor,
		Speculative: g.Speculative, Codec: codec{g.Ring}}
	if g.Lookup != nil {
		g.op.Lookup = g.lookup
	}
	_, err := g.op.Ask(context.Background(), s, once.Record{}) // checks the declaration only
	if err = errors.Join(err, once.Key{Operation: g.Operation, ID: "any"}.Validate()); err != nil {
		panic("httponce: the options make no sense: " + err.Error())
	}
	return g
}

// lookup calls Options.Lookup and returns the response in its recorded form.
func (g *settings) lookup(ctx context.Context, key once.Key) (*recording, bool, error) {
	found, happened, err := g.Lookup(ctx, key)
	if found == nil {
		found = &Response{Status: http.StatusNoContent}
	}
	r := found.recording()
	r.only, r.key = g.headers, key.UUID()
	untyped := func(f field) bool { return f.canonical == "Content-Type" && (len(f.values) == 0 || f.values[0] == "") }
	if r.head = slices.DeleteFunc(r.head, untyped); !has(r.head, "Content-Type") {
		r.setType(found.Body)
	}
	return r, happened, err
}

// RefuseGuessable is a CheckKey that requires at least 16 characters with some
// variety. Use it if callers share a scope, so that a caller cannot guess the
// keys of another.
func RefuseGuessable(key string) error {
	seen := make(map[rune]bool)
	for _, c := range key {
		seen[c] = true
	}
	if len(key) < 16 || len(seen) < 8 {
		return errors.New("the key can be guessed: use a random one of at least 16 characters, such as a UUID")
	}
	return nil
}
