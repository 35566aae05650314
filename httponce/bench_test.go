package httponce_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

var answer300 = []byte(strings.Repeat("x", 300))

func BenchmarkServer(b *testing.B) {
	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer300)
	})
	byHeader := func(r *http.Request) (string, error) { return "acme", nil }
	guarded := func() http.Handler { return httponce.Handler(memstore.New(nil), byHeader, work, nil) }
	for _, bench := range []struct {
		name    string
		handler http.Handler
		key     func(i int) string
	}{
		{"bare", work, nil},
		{"pass", guarded(), nil},
		{"first", guarded(), func(i int) string { return fmt.Sprintf("8e03978e-40d5-43dd-bc93-%012d", i) }},
		{"replay", guarded(), func(int) string { return "8e03978e-40d5-43dd-bc93-6894a57f9324" }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
				if bench.key != nil {
					r.Header[httponce.KeyHeader] = []string{bench.key(i)}
				}
				bench.handler.ServeHTTP(&discard{make(http.Header)}, r)
			}
		})
	}
}
