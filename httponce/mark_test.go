package httponce

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// order is a POST of "1" with the key k, as a server gets it.
func order(target string, change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader("1"))
	r.Header.Set(KeyHeader, "k")
	for _, c := range change {
		c(r)
	}
	return r
}

func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// TestRequestsToDifferentPlacesDoNotShareAResponse sends a first request and
// another with its key and body. If a server tells the two apart, the second
// never gets the response of the first. If they are one request, it does.
func TestRequestsToDifferentPlacesDoNotShareAResponse(t *testing.T) {
	type guarding func(*Options) http.Handler
	alone := func(guarded guarding, o *Options) http.Handler { return guarded(o) }
	stripped := func(guarded guarding, o *Options) http.Handler {
		mux := http.NewServeMux()
		for _, prefix := range []string{"/orders", "/refunds", "/orders%2F"} {
			mux.Handle(prefix+"/", http.StripPrefix(prefix, guarded(o)))
		}
		return mux
	}
	byHost := func(guarded guarding, o *Options) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST orders.example/", guarded(o))
		mux.Handle("refunds.example/", http.StripPrefix("/", guarded(o)))
		mux.Handle("/", guarded(o))
		return mux
	}
	rewritten := func(guarded guarding, o *Options) http.Handler { // by hand, in place
		inner := guarded(o)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path, r.URL.RawPath, r.URL.RawQuery = "/", "", ""
			inner.ServeHTTP(w, r)
		})
	}
	const orders, refunds = "http://orders.example/a", "http://refunds.example/a"
	for name, test := range map[string]struct {
		server        func(guarding, *Options) http.Handler
		o             Options
		first, second *http.Request
		same          bool
	}{
		"a prefix is stripped":          {stripped, Options{}, order("/orders/7"), order("/refunds/7"), false},
		"a prefix is stripped, at once": {stripped, Options{}, order("/orders/"), order("/refunds/"), false},
		"a prefix is stripped, again":   {stripped, Options{}, order("/orders/7?a=1"), order("/orders/7?a=1"), true},
		"the path is changed":           {rewritten, Options{}, order("/orders"), order("/refunds"), false},
		"the query is changed":          {rewritten, Options{}, order("/orders?id=1"), order("/orders?id=2"), false},
		"an escaped slash":              {rewritten, Options{}, order("/a%2Fb"), order("/a/b"), false},
		"an absolute target":            {alone, Options{}, order("http://one.example/a"), order("/a"), true},
		"routed by host":                {byHost, Options{}, order(orders), order(refunds), false},
		"routed by host, and by none":   {byHost, Options{}, order(orders), order("http://other.example/a"), false},
		"routed by host, again":         {byHost, Options{}, order(orders), order("http://orders.example:8443/a"), true},
		"another name of the host":      {byHost, Options{}, order("http://a.example/a"), order("http://b.example/a"), true},
		"another name, compared":        {byHost, Options{Compare: []string{"host"}}, order("http://a.example/a"), order("http://b.example/a"), false},
		"one name, compared":            {byHost, Options{Compare: []string{"Host"}}, order("http://a.example/a"), order("http://A.example/a"), true},
		"another method by a header":    {alone, Options{}, order("/a"), order("/a", with("X-HTTP-Method-Override", "DELETE")), false},
		"another condition":             {alone, Options{}, order("/a", with("If-Match", `"1"`)), order("/a", with("If-Match", `"2"`)), false},
		"a condition, again":            {alone, Options{}, order("/a", with("If-Match", `"1"`)), order("/a", with("If-Match", `"1"`)), true},
		"another part of an upload":     {alone, Options{}, order("/a", with("Content-Range", "bytes 0-0/2")), order("/a", with("Content-Range", "bytes 1-1/2")), false},
		"nothing is compared":           {alone, Options{Compare: []string{}}, order("/a", with("If-Match", `"1"`)), order("/a", with("If-Match", `"2"`)), true},
		"another type":                  {alone, Options{}, order("/a", with("Content-Type", "text/plain")), order("/a", with("Content-Type", "text/plain; charset=utf-8")), true},
		"another type, compared":        {alone, Options{Compare: []string{"content-type"}}, order("/a", with("Content-Type", "text/plain")), order("/a"), false},
		"a new token":                   {alone, Options{}, order("/a", with("Authorization", "Bearer 1")), order("/a", with("Authorization", "Bearer 2")), true},
	} {
		for _, form := range []string{"Handler", "HandlerTx", "around a mux"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				store, runs := memstore.New(nil), 0
				count := func(w http.ResponseWriter, r *http.Request) { runs++; w.WriteHeader(http.StatusCreated) }
				handler := func(o *Options) http.Handler {
					switch form {
					case "HandlerTx":
						return HandlerTx(store, anyone, func(w http.ResponseWriter, r *http.Request, _ *memstore.Tx) error { count(w, r); return nil }, o)
					case "around a mux":
						inner := http.NewServeMux()
						inner.HandleFunc("/", count)
						inner.HandleFunc("orders.example/", count)
						inner.HandleFunc("refunds.example/", count)
						return Handler(store, anyone, inner, o)
					}
					return Handler(store, anyone, http.HandlerFunc(count), o)
				}
				server := test.server(handler, &test.o)
				send := func(r *http.Request) *httptest.ResponseRecorder {
					w := httptest.NewRecorder()
					server.ServeHTTP(w, order(r.RequestURI, func(again *http.Request) { again.Host, again.Header = r.Host, r.Header.Clone() }))
					return w
				}
				if w := send(test.first); w.Code != http.StatusCreated || runs != 1 {
					t.Fatalf("first: %d %s, %d runs", w.Code, w.Body, runs)
				}
				want := http.StatusUnprocessableEntity
				if test.same {
					want = http.StatusCreated
				}
				if w := send(test.second); w.Code != want || runs != 1 || (w.Header().Get(ReplayedHeader) == "true") != test.same {
					t.Errorf("second: %d %s, %d runs", w.Code, w.Body, runs)
				}
				if w := send(test.first); w.Code != http.StatusCreated || w.Header().Get(ReplayedHeader) != "true" {
					t.Errorf("the first again: %d %s", w.Code, w.Body)
				}
			})
		}
	}
}

// TestHostsOfAMuxInsideTheGuard: a guard around a mux compares the host by which
// that mux routes.
func TestHostsOfAMuxInsideTheGuard(t *testing.T) {
	mux, runs := http.NewServeMux(), map[string]int{}
	for _, pattern := range []string{"orders.example/", "refunds.example/", "/"} {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) { runs[pattern]++ })
	}
	guarded := Handler(memstore.New(nil), anyone, mux, nil)
	send := func(url, key string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, order(url, with(KeyHeader, key)))
		return w
	}
	send("http://orders.example/a", "1")
	if w := send("http://refunds.example/a", "1"); w.Code != http.StatusUnprocessableEntity || runs["refunds.example/"] != 0 {
		t.Errorf("another host: %d %s, ran %v", w.Code, w.Body, runs)
	}
	send("http://a.example/a", "2")
	if w := send("http://b.example/a", "2"); w.Header().Get(ReplayedHeader) != "true" || runs["/"] != 1 {
		t.Errorf("another name of a host: %d %s, ran %v", w.Code, w.Body, runs)
	}
}

// olderMark is the mark that the first builds made of a request.
func olderMark(method, path, query, body string) []byte {
	var b []byte
	for _, part := range []string{method, path, query} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	sum := sha256.Sum256(append(b, body...))
	return sum[:]
}

// TestMarksStay: a repeat of a request that an older build has recorded is
// recognised, with and without a Ring. These marks never change.
func TestMarksStay(t *testing.T) {
	body := sha256.Sum256([]byte("1"))
	ring, err := NewRing(Secret{ID: "1", Bytes: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	const first, second = "the first builds", "the builds before targets"
	for name, test := range map[string]struct {
		by   string
		mark []byte // of the request /orders/7?a=1
		o    Options
		send *http.Request
		seen bool
	}{
		"the first builds":             {first, olderMark("POST", "/orders/7", "a=1", "1"), Options{}, order("/orders/7?a=1"), true},
		"the first builds, a Ring":     {first, ring.mark(0, olderMark("POST", "/orders/7", "a=1", "1")), Options{Ring: ring}, order("/orders/7?a=1"), true},
		"the first builds, no Ring":    {first, olderMark("POST", "/orders/7", "a=1", "1"), Options{Ring: ring}, order("/orders/7?a=1"), true},
		"the first builds, canonical":  {first, olderMark("POST", "/orders/7", "a=1", "1"), Options{Fingerprint: CanonicalJSON}, order("/orders/7?a=1"), true},
		"the first builds, other body": {first, olderMark("POST", "/orders/7", "a=1", "2"), Options{}, order("/orders/7?a=1"), false},
		"later builds":                 {second, olderMark("POST", "/orders/7", "a=1", string(body[:])), Options{}, order("/orders/7?a=1"), true},
		// The recorded request may have been to another route.
		"a URL that was changed": {first, olderMark("POST", "/7", "a=1", "1"), Options{}, order("/orders/7?a=1", func(r *http.Request) { r.URL.Path = "/7" }), false},
		"a header now compared":  {first, olderMark("POST", "/orders/7", "a=1", "1"), Options{}, order("/orders/7?a=1", with("If-Match", `"1"`)), false},
	} {
		t.Run(name, func(t *testing.T) {
			store, ran := memstore.New(nil), false
			h := Handler(store, anyone, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }), &test.o).(*guard)
			work := h.op.For("k").In("anyone").Input(test.mark)
			if _, err := once.Do(t.Context(), store, work, func(context.Context, once.Key) (*recording, error) {
				return &recording{status: http.StatusAccepted}, nil
			}); err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, test.send)
			want := http.StatusUnprocessableEntity
			if test.seen {
				want = http.StatusAccepted
			}
			if w.Code != want || ran {
				t.Errorf("%d %s, ran: %v", w.Code, w.Body, ran)
			}
		})
	}
	x := &exchange{settings: newSettings(memstore.New(nil), anyone, nil), r: order("/orders/7?a=1")}
	x.body.sum = body
	const want = "1eb3b051f798368f90217c24ac517a5dc2cb2dac6ccad877bdf676208fe10ab3"
	if err := x.digest(); err != nil || fmt.Sprintf("%x", x.mark) != want {
		t.Errorf("the mark of a plain request is %x, %v, want %s", x.mark, err, want)
	}
}

// TestOptionsThatCannotBeCompared: Compare has names of headers.
func TestOptionsThatCannotBeCompared(t *testing.T) {
	for _, name := range []string{"", "a b", KeyHeader} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was accepted", name)
				}
			}()
			Handler(memstore.New(nil), anyone, http.NotFoundHandler(), &Options{Compare: []string{name}})
		}()
	}
}
