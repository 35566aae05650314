package httponce_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

// TestAStoreThatIsDownIsLoggedByDefault: it is logged without a Logger, and not
// for every request.
func TestAStoreThatIsDownIsLoggedByDefault(t *testing.T) {
	logged, s := logtest.Default(t), &service{t: t}
	store := &broken{Store: memstore.New(nil)}
	store.claims.Store(true)
	server := httptest.NewServer(httponce.Handler(store, tenant, s.counted(nil), nil))
	defer server.Close()
	s.url = server.URL
	for i := range 10 {
		s.wantProblem(s.send(fmt.Sprint("k", i), "1"), 503, "unavailable")
	}
	if got := logged.String(); strings.Count(got, "httponce: the store cannot be used") != 1 {
		t.Errorf("logged: %s", got)
	}
}
