package httponce_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// The limits leave room for pools, which the race detector empties at random.
func TestAGuardCostsFewAllocations(t *testing.T) {
	work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{"application/json"}
		_, _ = w.Write(answer300)
	})
	guarded := httponce.Handler(memstore.New(nil), func(*http.Request) (string, error) { return "acme", nil }, work, nil)
	n := 0
	key := func() string { n++; return fmt.Sprintf("key-%09d", n) }
	cost := func(h http.Handler, key func() string) float64 {
		return testing.AllocsPerRun(500, func() {
			r, err := http.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header[httponce.KeyHeader] = []string{key()}
			h.ServeHTTP(&discard{make(http.Header)}, r)
		})
	}
	same := func() string { return "the-same" }
	if got := cost(guarded, key) - cost(work, key); got > 28 {
		t.Errorf("a first request costs %v allocations, want about 23", got)
	}
	// A repeat does not run the handler, and saves what that allocates.
	if got := cost(guarded, same) - cost(work, same); got > 12 {
		t.Errorf("a repeat costs %v allocations, want about 10", got)
	}
}
