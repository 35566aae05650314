package httponce_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// allowOrigin is the middleware of docs/http-cors.md, for several origins.
func allowOrigin(next http.Handler, origins ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); slices.Contains(origins, origin) {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "Idempotent-Replayed, Idempotency-Key-Lifetime, Location, Retry-After")
		}
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "POST")
			h.Set("Access-Control-Allow-Headers", "Content-Type, Idempotency-Key")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// TestBrowsersOfOtherOrigins: a preflight is answered without a key, and each
// response, replay and problem is for the origin that asks.
func TestBrowsersOfOtherOrigins(t *testing.T) {
	const one, two, stranger = "https://one.example", "https://two.example", "https://stranger.example"
	for form, guard := range forms {
		t.Run(form, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(allowOrigin(guard(s, created, &httponce.Options{Required: true}), one, two))
			defer server.Close()
			s.url = server.URL
			preflight := s.send("", "", header("Origin", one), header("Access-Control-Request-Method", "POST"),
				header("Access-Control-Request-Headers", "idempotency-key"), func(r *http.Request) { r.Method = http.MethodOptions })
			if preflight.status != http.StatusNoContent || preflight.header.Get("Access-Control-Allow-Headers") != "Content-Type, Idempotency-Key" {
				t.Errorf("preflight: %+v", preflight)
			}
			for i, test := range []struct {
				origin, allowed, body string
				status                int
			}{{one, one, "1", 201}, {two, two, "1", 201}, {stranger, "", "1", 201}, {one, one, "2", 422}, {"", "", "1", 201}} {
				a := s.send("k", test.body, header("Origin", test.origin))
				if a.status != test.status || a.header.Get("Access-Control-Allow-Origin") != test.allowed || !slices.Equal(a.header.Values("Vary"), []string{"Origin"}) {
					t.Errorf("request %d: %+v", i, a)
				}
			}
			s.wantRuns(1)
		})
	}
}
