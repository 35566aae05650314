package httponce_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// TestAGuardInsideAGuardIsRefused: two guards of one request with one key cannot
// both claim it. That is a mistake of the program: it is reported as one, and
// leaves the key free. Guards whose keys differ may be nested.
func TestAGuardInsideAGuardIsRefused(t *testing.T) {
	type guarding = func(*service, http.HandlerFunc, *httponce.Options) http.Handler
	other := func(s *service, h http.HandlerFunc, o *httponce.Options) http.Handler {
		return forms["Handler"](&service{t: s.t, store: memstore.New(nil)}, h, o)
	}
	direct := func(h http.Handler) http.Handler { return h }
	for name, test := range map[string]struct {
		outer, inner guarding
		o            httponce.Options // of the outer guard
		between      func(http.Handler) http.Handler
		works        bool
	}{
		"Handler in Handler":   {outer: forms["Handler"], inner: forms["Handler"]},
		"Handler in HandlerTx": {outer: forms["HandlerTx"], inner: forms["Handler"]},
		"HandlerTx in Handler": {outer: forms["Handler"], inner: forms["HandlerTx"]},
		"through a TimeoutHandler": {outer: forms["Handler"], inner: forms["Handler"], between: func(h http.Handler) http.Handler {
			return http.TimeoutHandler(h, time.Minute, "")
		}},
		"another Operation": {outer: forms["Handler"], inner: forms["Handler"], o: httponce.Options{Operation: "outer"}, works: true},
		"another store":     {outer: other, inner: forms["Handler"], works: true},
		"another key": {outer: forms["Handler"], inner: forms["Handler"], works: true, between: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Set(httponce.KeyHeader, r.Header.Get(httponce.KeyHeader)+"-step")
				h.ServeHTTP(w, r)
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.between == nil {
				test.between = direct
			}
			s := &service{t: t, store: memstore.New(nil)}
			inner := test.between(test.inner(s, created, nil))
			server := httptest.NewServer(test.outer(s, inner.ServeHTTP, &test.o))
			defer server.Close()
			s.url = server.URL
			for i := range 2 {
				a := s.send("k", "1")
				if !test.works {
					s.wantProblem(a, 500, "misconfigured")
				} else if a.status != http.StatusCreated || a.replayed() != (i > 0) {
					t.Errorf("request %d: %+v", i, a)
				}
			}
		})
	}
}

// TestNotDoneThroughWrappers: NotDone frees the key through any wrapper of the
// ResponseWriter, and leaves nothing in the response.
func TestNotDoneThroughWrappers(t *testing.T) {
	timeout := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") }
	for name, test := range map[string]struct {
		between func(http.Handler) http.Handler
		late    bool // NotDone comes after the response
	}{
		"none":                   {between: func(h http.Handler) http.Handler { return h }},
		"TimeoutHandler":         {between: timeout},
		"two of them":            {between: func(h http.Handler) http.Handler { return timeout(timeout(h)) }},
		"TimeoutHandler, late":   {between: timeout, late: true},
		"a wrapper":              {between: opaque},
		"a wrapper, late":        {between: opaque, late: true},
		"a wrapper in the other": {between: func(h http.Handler) http.Handler { return timeout(opaque(h)) }},
	} {
		for form, guard := range forms {
			t.Run(name+"/"+form, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				inner := test.between(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if !test.late {
						httponce.NotDone(w)
					}
					w.WriteHeader(http.StatusBadRequest)
					if test.late {
						httponce.NotDone(w)
					}
				}))
				server := httptest.NewServer(guard(s, inner.ServeHTTP, nil))
				defer server.Close()
				s.url = server.URL
				for range 2 {
					if a := s.send("k", "1"); a.status != http.StatusBadRequest || a.replayed() || a.header.Get("Once-Not-Done") != "" {
						t.Errorf("got %+v", a)
					}
				}
				s.wantRuns(2)
			})
		}
	}
}

// opaque wraps the ResponseWriter in a type without Unwrap.
func opaque(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
}

// TestAForwardedNotDoneDoesNotCount: only the handler itself can free the key,
// not the header of a response that it forwards. Without a guard, NotDone leaves
// no header.
func TestAForwardedNotDoneDoesNotCount(t *testing.T) {
	onEachForm(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Once-Not-Done", "true")
		w.WriteHeader(http.StatusBadRequest)
	}, nil, func(t *testing.T, s *service) {
		s.send("k", "1")
		if a := s.send("k", "1"); !a.replayed() {
			t.Errorf("got %+v", a)
		}
		s.wantRuns(1)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { httponce.NotDone(w) }))
	defer server.Close()
	s := &service{t: t, url: server.URL}
	if a := s.send("", "1"); a.header.Get("Once-Not-Done") != "" {
		t.Errorf("got %+v", a)
	}
}
