package httponce_test

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// likeGin redirects to a path without its trailing slash, as gin does.
func likeGin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, found := strings.CutSuffix(r.URL.Path, "/"); found {
			http.Redirect(w, r, path, http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// TestWhatRoutingAnswersIsNoWork sends a request that is redirected or finds no
// route inside the guard. It does not use up its key: the client reaches the
// handler with the same key afterwards.
func TestWhatRoutingAnswersIsNoWork(t *testing.T) {
	muxWith := func(pattern string, h http.Handler) *http.ServeMux {
		mux := http.NewServeMux()
		mux.Handle(pattern, h)
		return mux
	}
	moved := func(status int, work http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/old" {
				http.Redirect(w, r, "/payments", status)
				return
			}
			work.ServeHTTP(w, r)
		})
	}
	for name, test := range map[string]struct {
		inner       func(work http.Handler) http.Handler
		o           httponce.Options
		first, then string // paths; then is asked by the test if the client does not follow
		method      string // of then
		recorded    bool
	}{
		"a trailing slash":       {inner: func(work http.Handler) http.Handler { return muxWith("POST /payments/", work) }, first: "/payments"},
		"a path is cleaned":      {inner: func(work http.Handler) http.Handler { return muxWith("POST /payments", work) }, first: "//payments"},
		"in middleware":          {inner: func(work http.Handler) http.Handler { return likeGin(muxWith("/payments", work)) }, first: "/payments/"},
		"like gin":               {inner: likeGin, first: "/payments/"},
		"a handler's 307":        {inner: func(work http.Handler) http.Handler { return moved(307, work) }, first: "/old"},
		"a handler's 308":        {inner: func(work http.Handler) http.Handler { return moved(308, work) }, first: "/old"},
		"a 308 that is recorded": {inner: func(work http.Handler) http.Handler { return moved(308, work) }, first: "/old", recorded: true, o: httponce.Options{Decide: func(*http.Request, int) httponce.Decision { return httponce.Record }}},
		"a handler's 303":        {inner: func(work http.Handler) http.Handler { return moved(303, work) }, first: "/old", then: "/payments", recorded: true},
		"a RedirectHandler": {inner: func(work http.Handler) http.Handler {
			mux := muxWith("/payments", work)
			mux.Handle("/old", http.RedirectHandler("/payments", http.StatusMovedPermanently))
			return mux
		}, first: "/old", then: "/payments"},
		"no route":            {inner: func(work http.Handler) http.Handler { return muxWith("/payments", work) }, first: "/paymnets", then: "/payments"},
		"another method":      {inner: func(work http.Handler) http.Handler { return muxWith("PUT /payments", work) }, first: "/payments", then: "/payments", method: http.MethodPut},
		"a 404 of a handler":  {inner: func(work http.Handler) http.Handler { return muxWith("/", http.NotFoundHandler()) }, first: "/a", then: "/b", recorded: true},
		"a 404 without a mux": {inner: func(work http.Handler) http.Handler { return http.NotFoundHandler() }, first: "/a", then: "/b", recorded: true},
	} {
		for _, outer := range []string{"alone", "in a mux"} {
			t.Run(name+"/"+outer, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodGet { // a client follows 301 and 303 with GET
						s.counted(http.HandlerFunc(created)).ServeHTTP(w, r)
					}
				})
				guarded := httponce.Handler(s.store, tenant, test.inner(work), &test.o)
				if outer == "in a mux" {
					guarded = muxWith("/", guarded)
				}
				server := httptest.NewServer(guarded)
				defer server.Close()
				s.url = server.URL
				at := func(path string) func(*http.Request) {
					return func(r *http.Request) { r.URL.Path = path; r.URL.RawQuery = "" }
				}
				a := s.send("k", "hello", at(test.first))
				if test.then != "" {
					a = s.send("k", "hello", at(test.then), func(r *http.Request) { r.Method = cmp.Or(test.method, r.Method) })
				}
				if test.recorded {
					s.wantProblem(a, 422, "key-reused")
					s.wantRuns(0)
					return
				}
				if a.status != http.StatusCreated || a.replayed() {
					t.Errorf("got %+v", a)
				}
				s.wantRuns(1)
			})
		}
	}
}

// TestARedirectOfATransactionFreesTheKey is the same for HandlerTx.
func TestARedirectOfATransactionFreesTheKey(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["HandlerTx"](s, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/new", http.StatusPermanentRedirect)
			return
		}
		created(w, r)
	}, nil))
	defer server.Close()
	s.url = server.URL
	a := s.send("k", "hello", func(r *http.Request) { r.URL.Path = "/old" })
	if a.status != http.StatusCreated || a.replayed() {
		t.Errorf("got %+v", a)
	}
}
