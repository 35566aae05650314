package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/memstore"
)

func TestRoutes(t *testing.T) {
	server := routes(memstore.New(nil))
	for _, c := range []struct {
		what, method, tenant, key, body string
		status                          int
		answer                          string
		replayed                        bool
	}{
		{"the first", "POST", "alice", "k", "milk", 201, "note 1\n", false},
		{"a repeat", "POST", "alice", "k", "milk", 201, "note 1\n", true},
		{"another note under the same key", "POST", "alice", "k", "bread", 422, "key-reused", false},
		{"another caller", "POST", "bob", "k", "milk", 201, "note 2\n", false},
		{"a key without a caller", "POST", "", "k", "milk", 401, "caller-unknown", false},
		{"no key", "POST", "alice", "", "milk", 201, "note 3\n", false},
		{"what there is", "GET", "alice", "", "", 200, `["milk" "milk" "milk"]`, false},
		{"a key is required", "DELETE", "alice", "", "", 400, "key-missing", false},
		{"and given", "DELETE", "alice", "k", "", 200, "", false},
		{"and repeated", "DELETE", "alice", "k", "", 200, "", true},
		{"nothing is left", "GET", "alice", "", "", 200, "[]", false},
	} {
		r := httptest.NewRequest(c.method, "/notes", strings.NewReader(c.body))
		if c.tenant != "" {
			r.Header.Set("Tenant", c.tenant)
		}
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		replayed := w.Header().Get("Idempotent-Replayed") == "true"
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) || replayed != c.replayed {
			t.Errorf("%s: %d %q, replayed %v", c.what, w.Code, w.Body, replayed)
		}
	}
}
