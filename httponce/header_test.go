package httponce_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// oneTime are headers of one response, in spellings that maps and files allow.
var oneTime = map[string]string{
	"set-cookie": "session=1", "SET-COOKIE2": "b=1", "date": "Mon, 01 Jan 2001 00:00:00 GMT", "content-length": "3", "connection": "close, X-Hop", "KEEP-ALIVE": "timeout=5",
	"transfer-encoding": "chunked", "upgrade": "h2c", "te": "trailers", "trailer": "X-Sum", "proxy-connection": "close", "idempotent-replayed": "no", "X-Hop": "1",
	"www-authenticate": "Basic", "authorization": "secret", "proxy-authenticate": "Basic", "http2-settings": "x", "authentication-info": "x",
}

// wantNoneOneTime checks that a repeat has none of the headers of one response.
func wantNoneOneTime(t *testing.T, a answer) {
	t.Helper()
	for name, value := range oneTime {
		if slices.Contains(a.header.Values(name), value) {
			t.Errorf("the repeat got %s: %q", name, a.header.Values(name))
		}
	}
}

// TestOddHeaderNames: names of headers that are set directly in the map are
// recorded and replayed, or left out, like all others.
func TestOddHeaderNames(t *testing.T) {
	want := map[string]string{"content-type": "text/csv", "location": "/a", "ETAG": `"1"`, "x-listed": "yes", "cache-control": "private"}
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		for name, value := range want {
			w.Header()[name] = []string{value}
		}
		for _, name := range []string{"set-cookie", "date", "keep-alive", "proxy-connection", "www-authenticate", "X-Hop", "idempotent-replayed"} {
			w.Header()[name] = []string{oneTime[name]}
		}
		w.Header()["connection"] = []string{"X-Hop"}
		w.Header()["VARY"], w.Header()["Vary"] = []string{"b"}, []string{"a"}
		_, _ = w.Write([]byte("a;b;c"))
	}, &httponce.Options{Headers: []string{"X-Listed", "X-Hop"}}, func(t *testing.T, s *service) {
		s.send("k", "1")
		again := s.send("k", "1")
		if !again.replayed() || again.body != "a;b;c" || again.header.Get("Content-Length") != "5" {
			t.Errorf("the repeat got %+v", again)
		}
		for name, value := range want {
			if got := again.header.Values(name); len(got) != 1 || got[0] != value {
				t.Errorf("%s: %q, want %q", name, got, value)
			}
		}
		if got := slices.Sorted(slices.Values(again.header.Values("Vary"))); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("Vary: %q", got)
		}
		wantNoneOneTime(t, again)
	})
}

// TestHeadersThatConnectionNames: a header that Connection names is of that
// connection, even if it is one that is recorded.
func TestHeadersThatConnectionNames(t *testing.T) {
	for _, name := range []string{"Connection", "connection"} {
		onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header()[name] = []string{"close", "keep-alive, x-HOP ,Link"}
			w.Header().Set("X-Hop", "1")
			w.Header().Set("Link", "</a>")
			w.Header().Set("Location", "/a")
		}, &httponce.Options{Headers: []string{"X-Hop"}}, func(t *testing.T, s *service) {
			s.send("k", "1")
			if again := s.send("k", "1"); !again.replayed() || again.header.Get("X-Hop")+again.header.Get("Link") != "" || again.header.Get("Location") != "/a" {
				t.Errorf("%s: the repeat got %v", name, again.header)
			}
		})
	}
}

// TestOutcomesDecidedByHand: an answer that a person or a Lookup gives is
// replayed without the headers that belong to one response.
func TestOutcomesDecidedByHand(t *testing.T) {
	odd := http.Header{"location": {"/a"}, "X-Custom": {"1"}}
	var lines strings.Builder
	for name, value := range oneTime {
		odd[name] = []string{value}
		lines.WriteString(name + ": " + value + "\r\n")
	}
	byHand := func(decide func(*testing.T) once.Outcome) func(*testing.T, *httponce.Options) answer {
		return func(t *testing.T, o *httponce.Options) answer {
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, o))
			defer server.Close()
			s.url = server.URL
			s.send("k", "1")
			page, err := s.store.List(t.Context(), once.RecordQuery{})
			if err != nil || len(page.Records) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			if o.Lookup == nil {
				if err := once.MarkDone(t.Context(), s.store, page.Records[0], decide(t), "seen"); err != nil {
					t.Fatal(err)
				}
			}
			first := s.send("k", "1")
			wantNoneOneTime(t, first)
			return s.send("k", "1")
		}
	}
	body := []byte("paid in full")
	for name, test := range map[string]struct {
		settle func(*testing.T, *httponce.Options) answer
		o      *httponce.Options
	}{
		"Outcome": {byHand(func(t *testing.T) once.Outcome {
			out, err := (&httponce.Response{Status: 201, Header: odd, Body: body}).Outcome()
			if err != nil {
				t.Fatal(err)
			}
			return out
		}), &httponce.Options{}},
		"a file": {byHand(func(*testing.T) once.Outcome {
			return once.Outcome{ContentType: "application/http", Body: []byte("HTTP/1.1 201 Created\r\nlocation:/a\r\nX-Custom: 1\r\n" + lines.String() + "\r\n" + string(body))}
		}), &httponce.Options{}},
		"Lookup": {byHand(nil), &httponce.Options{Headers: []string{"X-Custom"}, Lookup: func(context.Context, once.Key) (*httponce.Response, bool, error) {
			return &httponce.Response{Status: 201, Header: odd, Body: body}, true, nil
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.settle(t, test.o)
			if a.status != 201 || !a.replayed() || a.body != string(body) || a.header.Get("Location") != "/a" || a.header.Get("X-Custom") != "1" {
				t.Errorf("got %+v", a)
			}
			wantNoneOneTime(t, a)
		})
	}
}

// TestNamesThatAreNoHeaders: an answer that could not be read again is refused
// when it is made, not when it is replayed.
func TestNamesThatAreNoHeaders(t *testing.T) {
	for _, name := range []string{"", "a b", "X: y", "Trailer:Sum\r\n", "ü"} {
		r := &httponce.Response{Status: 200, Header: http.Header{name: {"x"}}}
		if out, err := r.Outcome(); err == nil {
			t.Errorf("%q: %q", name, out.Body)
		}
	}
}

// TestOuterHeaders: headers of middleware outside the guard stay, except those
// that describe the recorded body.
func TestOuterHeaders(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			guarded := form(s, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Request-Id", "of the handler")
				w.Header().Set("Content-Type", "text/csv")
				w.Header().Set("Cache-Control", "private")
				w.Header().Set("X-Listed", "yes")
				w.Header().Add("Vary", "Accept")
				w.Header().Set("Etag", `"1"`)
				_, _ = w.Write([]byte("a;b"))
			}, &httponce.Options{Headers: []string{"X-Request-Id", "X-Listed"}})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Request-Id", r.Header.Get("Number"))
				w.Header().Set("Content-Type", "application/json") // a default
				w.Header().Set("Content-Security-Policy", "default-src 'none'")
				w.Header()["cache-control"] = []string{"no-store"}
				w.Header().Add("Vary", "Origin")
				guarded.ServeHTTP(w, r)
			}))
			defer server.Close()
			s.url = server.URL
			number := func(n string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Number", n) } }
			s.send("k", "1", number("1"))
			again := s.send("k", "1", number("2"))
			for header, want := range map[string][]string{
				"X-Request-Id": {"2"}, "Cache-Control": {"no-store"}, "Vary": {"Origin", "Accept"}, // of this request
				"Content-Type": {"text/csv"}, "Etag": {`"1"`}, "X-Listed": {"yes"}, // of the record
				"Content-Security-Policy": {"default-src 'none'"},
			} {
				if got := again.header.Values(header); !again.replayed() || !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", header, got, want)
				}
			}
			// A problem is no answer of the handler: what describes that is not
			// of it.
			problem := s.send("k", "2", number("3"))
			s.wantProblem(problem, 422, "key-reused")
			if got := problem.header.Values("Cache-Control"); !slices.Equal(got, []string{"no-store"}) {
				t.Errorf("Cache-Control of a problem: %q", got)
			}
			if problem.header.Get("Content-Security-Policy") == "" || problem.header.Get("X-Request-Id") != "3" {
				t.Errorf("a problem lacks what middleware has set: %v", problem.header)
			}
		})
	}
}
