package httponce_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// chainWriter is the ResponseWriter of a framework like gin.
type chainWriter struct {
	http.ResponseWriter
	status, size int
}

func (w *chainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *chainWriter) WriteHeader(status int)      { w.status = status }
func (w *chainWriter) Written() bool               { return w.size >= 0 }
func (w *chainWriter) Status() int                 { return w.status }
func (w *chainWriter) Size() int                   { return w.size }

func (w *chainWriter) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *chainWriter) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

// chain is a framework that runs each handler of a list, until one aborts it.
type chain struct {
	w        http.ResponseWriter
	r        *http.Request
	handlers []func(*chain)
	next     int
	aborted  bool
}

func (c *chain) run() {
	for !c.aborted && c.next < len(c.handlers) {
		c.next++
		c.handlers[c.next-1](c)
	}
}

func chained(handlers ...func(*chain)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writer := &chainWriter{ResponseWriter: w, status: http.StatusOK, size: -1}
		(&chain{w: writer, r: r, handlers: handlers}).run()
		writer.WriteHeaderNow()
	})
}

// TestAFrameworkThatGoesAroundTheGuardIsStopped mounts a guard in ways in which
// it cannot work. The program has at most one effect more than without the
// mistake, the guard panics with what to change, and from then on nothing runs.
func TestAFrameworkThatGoesAroundTheGuardIsStopped(t *testing.T) {
	work := func(runs *atomic.Int64) func(*chain) {
		return func(c *chain) {
			runs.Add(1)
			c.w.WriteHeader(http.StatusCreated)
			fmt.Fprint(c.w, "done")
		}
	}
	// mount returns the handler of a chain that calls the guard.
	mount := func(guard func(http.Handler) http.Handler, adapt, abort bool) func(*chain) {
		return func(c *chain) {
			ran := false
			guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ran = true
				if adapt {
					c.w = w
				}
				c.r = r
				c.run()
			})).ServeHTTP(c.w, c.r)
			c.aborted = abort || ran
		}
	}
	for name, test := range map[string]struct {
		adapt, abort bool
		store        func(*memstore.Store) // what another process has done before
		runs         int64                 // of four requests with one key
		text         string                // of the panic; empty: none
	}{
		"right":                         {adapt: true, abort: true, runs: 1},
		"without Abort":                 {adapt: true, runs: 2, text: "c.Abort()"},
		"with its own writer":           {abort: true, runs: 1, text: "around the guard"},
		"with its own, without Abort":   {runs: 1, text: "around the guard"},
		"refused, and goes on":          {adapt: true, store: func(s *memstore.Store) { taken(t, s) }, runs: 1, text: "c.Abort()"},
		"refused, and ends there":       {adapt: true, abort: true, store: func(s *memstore.Store) { taken(t, s) }},
		"its own, refused, and goes on": {store: func(s *memstore.Store) { taken(t, s) }, runs: 1, text: "c.Abort()"},
	} {
		t.Run(name, func(t *testing.T) {
			store, runs := memstore.New(nil), new(atomic.Int64)
			if test.store != nil {
				test.store(store)
			}
			guard := httponce.Middleware(store, tenant, nil)
			panics := new(notes)
			h := chained(mount(guard, test.adapt, test.abort), work(runs))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if p := recover(); p != nil {
						panics.add("%v", p)
						panic(http.ErrAbortHandler)
					}
				}()
				h.ServeHTTP(w, r)
			}))
			defer server.Close()
			for range 4 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("1"))
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			if got := runs.Load(); got != test.runs || (panics.String() == "") != (test.text == "") {
				t.Errorf("it ran %d times, want %d; panics: %s", got, test.runs, panics)
			}
			for p := range strings.Lines(panics.String()) {
				if !strings.Contains(p, test.text) || !strings.Contains(p, "docs/http.md") {
					t.Errorf("a panic says %q", p)
				}
			}
		})
	}
}

// taken gives the key to a request with another body.
func taken(t *testing.T, s *memstore.Store) {
	h := httponce.Handler(s, tenant, http.HandlerFunc(created), nil)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("another"))
	r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusCreated {
		t.Error(w.Code)
	}
}

// TestAHandlerThatAnswersAroundTheGuard uses the outer ResponseWriter directly,
// over both protocols. HandlerTx rolls back. Neither records a response.
func TestAHandlerThatAnswersAroundTheGuard(t *testing.T) {
	for form, guard := range forms {
		for protocol, start := range map[string]func(*httptest.Server){"1.1": (*httptest.Server).Start, "2": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() }} {
			t.Run(form+"/"+protocol, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				var outer http.ResponseWriter
				guarded := guard(s, func(http.ResponseWriter, *http.Request) { outer.WriteHeader(http.StatusCreated) }, nil)
				var panics atomic.Int64
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() {
						if recover() != nil {
							panics.Add(1)
						}
					}()
					outer = w
					guarded.ServeHTTP(w, r)
				}))
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				start(server)
				defer server.Close()
				s.url, s.client = server.URL, server.Client()
				s.send("k", "1")
				if a := s.send("k", "1"); a.replayed() || panics.Load() != 2 {
					t.Errorf("got %+v, %d panics", a, panics.Load())
				}
				s.wantRuns(1)
			})
		}
	}
}

// TestInformationThroughWritersThatTell: an informational response is the
// guard's own, though the outer writer tells a new status.
func TestInformationThroughWritersThatTell(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	guarded := forms["Handler"](s, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
	}, nil)
	server := httptest.NewServer(chained(func(c *chain) { guarded.ServeHTTP(c.w, c.r) }))
	defer server.Close()
	s.url = server.URL
	for i := range 2 {
		if a := s.send("k", "1"); a.status != http.StatusCreated || a.replayed() != (i > 0) {
			t.Errorf("got %+v", a)
		}
	}
}

// TestARecorderThatIsUsedTwice: a test may pass one ResponseRecorder to two
// requests. That the first response has begun is no mistake of the second.
func TestARecorderThatIsUsedTwice(t *testing.T) {
	h, w := httponce.Handler(memstore.New(nil), tenant, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil), httptest.NewRecorder()
	for _, key := range []string{"1", "2"} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {key}}
		h.ServeHTTP(w, r)
	}
	httponce.NotDone(nil)
}
