package httponce_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
)

// row is a row of the table of answers, as data.
type row struct {
	name     string
	forms    string // default: both
	options  httponce.Options
	handle   http.HandlerFunc               // default: created
	before   func(t *testing.T, s *service) // what has happened already, other than a first request
	first    bool                           // a first request has been sent
	broken   string                         // the calls of the store that fail
	key      string                         // default: "k", quoted; none: no header
	change   func(*http.Request)            // of the request
	status   int
	problem  string // the end of its type; empty: no problem
	retry    bool   // there is a Retry-After of at least one second
	replayed bool
	runs     int64 // of the handler, by this request
}

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = values }
}

// table is the table of the package documentation.
var table = []row{
	{name: "key missing where it is required", options: httponce.Options{Required: true}, key: "none", status: 400, problem: "key-missing"},
	{name: "key missing, atomic", forms: "HandlerTx", key: "none", status: 400, problem: "key-missing"},
	{name: "key not required", forms: "Handler", key: "none", status: 201, runs: 1},
	{name: "key empty", change: header(httponce.KeyHeader, ""), status: 400, problem: "key-malformed"},
	{name: "key empty, quoted", key: `""`, status: 400, problem: "key-malformed"},
	{name: "key of 255 bytes", key: strings.Repeat("x", 255), status: 201, runs: 1},
	{name: "key over 255 bytes", key: strings.Repeat("x", 256), status: 400, problem: "key-malformed"},
	{name: "key with a tab", key: "\"a\tb\"", status: 400, problem: "key-malformed"},
	{name: "key not ASCII", key: "\"ä\"", status: 400, problem: "key-malformed"},
	{name: "header sent twice", change: header(httponce.KeyHeader, "a", "a"), status: 400, problem: "key-malformed"},
	{name: "headers joined by a proxy", key: `"a", "a"`, status: 400, problem: "key-malformed"},
	{name: "key refused by CheckKey", options: httponce.Options{CheckKey: httponce.RefuseGuessable}, status: 400, problem: "key-malformed"},
	{name: "no caller", change: header("Tenant", ""), status: 401, problem: "caller-unknown"},
	{name: "forged caller", change: header("Tenant", "forged"), status: 401, problem: "caller-unknown"},
	{name: "the first", status: 201, runs: 1},
	{name: "done", first: true, status: 201, replayed: true},
	{name: "done, the bare form of the key", first: true, key: "k", status: 201, replayed: true},
	{name: "done, for another caller", first: true, change: header("Tenant", "other"), status: 201, runs: 1},
	{name: "still running, refused", forms: "Handler", options: httponce.Options{Policy: once.Policy{Wait: once.NoWait}}, before: claimed, status: 409, problem: "in-progress", retry: true},
	{name: "still running, waited for in vain", forms: "Handler", options: httponce.Options{Policy: once.Policy{Wait: 20 * time.Millisecond}}, before: claimed, status: 409, problem: "in-progress", retry: true},
	{name: "still running, waited for", forms: "Handler", before: claimedFor(50 * time.Millisecond), options: httponce.Options{OnUnknown: once.Resend}, status: 201, runs: 1},
	{name: "another body", first: true, change: func(r *http.Request) { *r = *r.Clone(r.Context()); r.Body = http.NoBody; r.ContentLength = 0 }, status: 422, problem: "key-reused"},
	{name: "another query", first: true, change: func(r *http.Request) { r.URL.RawQuery = "a=2" }, status: 422, problem: "key-reused"},
	{name: "another path", first: true, change: func(r *http.Request) { r.URL.Path += "/" }, status: 422, problem: "key-reused"},
	{name: "another method", first: true, change: func(r *http.Request) { r.Method = http.MethodPatch }, status: 422, problem: "key-reused"},
	{name: "outcome expired", first: true, options: httponce.Options{Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Hour}}, status: 410, problem: "answer-expired"},
	{name: "response too large to be kept", first: true, options: httponce.Options{MaxResponse: 3}, status: 410, problem: "answer-not-kept", replayed: true},
	{name: "outcome unknown: 500", forms: "Handler", first: true, handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, status: 409, problem: "outcome-unknown", retry: true},
	{name: "outcome unknown: crashed", forms: "Handler", before: claimedFor(time.Millisecond), status: 409, problem: "outcome-unknown", retry: true},
	{name: "outcome unknown, asked about", forms: "Handler", before: claimedFor(time.Millisecond), options: httponce.Options{Lookup: found}, status: 202, replayed: true},
	{name: "outcome unknown, pending", forms: "Handler", before: claimedFor(time.Millisecond), options: httponce.Options{Lookup: pending}, status: 409, problem: "outcome-unknown", retry: true},
	{name: "outcome unknown, run again", forms: "Handler", before: claimedFor(time.Millisecond), options: httponce.Options{OnUnknown: once.Resend}, status: 201, runs: 1},
	{name: "store unreachable", broken: "claim transact", status: 503, problem: "unavailable", retry: true},
	{name: "store unreachable, open", forms: "Handler", broken: "claim", options: httponce.Options{FailOpen: true}, status: 201, runs: 1},
	{name: "over the rate", first: true, options: httponce.Options{Limits: httponce.Limits{PerSecond: 0.01}}, key: "new", status: 429, problem: "too-many-requests", retry: true},
	{name: "over the rate, a known key", first: true, options: httponce.Options{Limits: httponce.Limits{PerSecond: 0.01}}, status: 201, replayed: true},
	{name: "over the rate, another caller", first: true, options: httponce.Options{Limits: httponce.Limits{PerSecond: 0.01}}, key: "new", change: header("Tenant", "other"), status: 201, runs: 1},
	{name: "body over the limit", options: httponce.Options{MaxBody: 3}, status: 413, problem: "body-too-large"},
	{name: "body over the limit, key known", options: httponce.Options{MaxBody: 3}, before: claimed, status: 413, problem: "body-too-large"},
	{name: "body over the limit, chunked", options: httponce.Options{MaxBody: 3}, change: func(r *http.Request) { r.ContentLength = -1 }, status: 413, problem: "body-too-large"},
}

// TestTheTableOfTheDocumentationHolds goes through the table.
func TestTheTableOfTheDocumentationHolds(t *testing.T) {
	for _, c := range table {
		for name := range forms {
			if c.forms != "" && c.forms != name {
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) { c.check(t, name) })
		}
	}
}

func (c row) check(t *testing.T, form string) {
	handle := c.handle
	if handle == nil {
		handle = created
	}
	f := new(faulty)
	s := serveWith(t, f, form, handle, &c.options)
	if c.before != nil {
		c.before(t, s)
	}
	if c.first {
		s.send(`"k"`, "hello")
	}
	s.runs.Store(0)
	if c.broken != "" {
		f.before = func(call string) error {
			if strings.Contains(c.broken, call) {
				return errors.New("connection refused")
			}
			return nil
		}
	}
	key := map[string]string{"": `"k"`, "none": ""}[c.key]
	if c.key != "" && c.key != "none" {
		key = c.key
	}
	var changes []func(*http.Request)
	if c.change != nil {
		changes = append(changes, c.change)
	}
	a := s.send(key, "hello", changes...)
	s.wantRuns(c.runs)
	if c.problem != "" {
		s.wantProblem(a, c.status, c.problem)
	}
	if a.status != c.status || a.problem() != c.problem || a.replayed() != c.replayed {
		t.Errorf("got %+v", a)
	}
	after, _ := strconv.Atoi(a.header.Get("Retry-After"))
	if (after > 0) != c.retry || a.header.Get("Retry-After") != "" && !c.retry {
		t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
	}
	if c.status >= 400 && c.replayed == false && a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a cache may keep it: %v", a.header)
	}
}

// claimed has the key held by another process.
func claimed(t *testing.T, s *service) { claimedFor(time.Minute)(t, s) }

func claimedFor(lease time.Duration) func(*testing.T, *service) {
	return func(t *testing.T, s *service) {
		key := once.Key{Scope: "acme", Operation: "http", ID: "k"}
		if _, err := s.store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: lease}); err != nil {
			t.Fatal(err)
		}
		if lease == time.Millisecond {
			s.eventually("the lease lapses", func() bool {
				rec, err := s.store.Get(t.Context(), key)
				return err == nil && rec.Status == once.Unknown
			})
		}
	}
}

func found(context.Context, once.Key) (*httponce.Response, bool, error) {
	return &httponce.Response{Status: 202}, true, nil
}

func pending(context.Context, once.Key) (*httponce.Response, bool, error) {
	return nil, false, fmt.Errorf("not yet")
}
