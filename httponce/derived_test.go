package httponce_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// TestKeysOfClientsThatSendNone has Options.Key name requests by their order.
func TestKeysOfClientsThatSendNone(t *testing.T) {
	byOrder := func(_ *http.Request, body []byte) (string, error) {
		var order struct{ Order, Error string }
		if err := json.Unmarshal(body, &order); err != nil {
			return "", errors.New("the body is not JSON")
		}
		return order.Order, nil
	}
	const first = `{"order":"7","cents":1}`
	to := func(path string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = path } }
	same := func(*http.Request) {}
	for name, test := range map[string]struct {
		required bool
		key      string // of the second request
		body     string
		change   func(*http.Request)
		status   int
		problem  string
		replayed bool
		runs     int64 // of both
	}{
		"again":                     {body: first, change: same, status: 201, replayed: true, runs: 1},
		"another order":             {body: `{"order":"8","cents":1}`, change: same, status: 201, runs: 2},
		"another amount":            {body: `{"order":"7","cents":2}`, change: same, status: 422, problem: "key-reused", runs: 1},
		"another route":             {body: first, change: to("/refunds"), status: 201, runs: 2},
		"another method":            {body: first, change: func(r *http.Request) { r.Method = http.MethodPut }, status: 201, runs: 2},
		"another caller":            {body: first, change: header("Tenant", "other"), status: 201, runs: 2},
		"a key of its own":          {key: "k", body: first, change: same, status: 201, runs: 2},
		"no order":                  {body: `{}`, change: same, status: 201, runs: 2},
		"no order, but required":    {required: true, body: `{}`, change: same, status: 400, problem: "key-missing", runs: 1},
		"not JSON":                  {body: `x`, change: same, status: 400, problem: "body-unreadable", runs: 1},
		"of unknown length":         {body: first, change: func(r *http.Request) { r.ContentLength = -1 }, status: 201, replayed: true, runs: 1},
		"a body over the limit":     {body: first + strings.Repeat(" ", 2000), change: same, status: 413, problem: "body-too-large", runs: 1},
		"required, and named by it": {required: true, body: first, change: same, status: 201, replayed: true, runs: 1},
	} {
		for form, guard := range forms {
			t.Run(name+"/"+form, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				h := guard(s, func(w http.ResponseWriter, r *http.Request) {
					if got, err := io.ReadAll(r.Body); err != nil || r.Method == http.MethodPost && !json.Valid(got) {
						t.Errorf("the handler got %q, %v", got, err)
					}
					w.WriteHeader(http.StatusCreated)
				}, &httponce.Options{Key: byOrder, Required: test.required, MaxBody: 1000})
				server := httptest.NewServer(h)
				defer server.Close()
				s.url = server.URL
				s.send("", first)
				a, runs := s.send(test.key, test.body, test.change), test.runs
				status, problem := test.status, test.problem
				if name == "no order" && form == "HandlerTx" { // every request needs a key
					status, problem, runs = 400, "key-missing", 1
				}
				if a.status != status || a.problem() != problem || a.replayed() != test.replayed {
					t.Errorf("got %+v", a)
				}
				s.wantRuns(runs)
			})
		}
	}
}

// TestTheLifetimeOfKeysIsTold: every response of a guard says how long keys and
// responses are kept, and no record has it.
func TestTheLifetimeOfKeysIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		policy once.Policy
		want   string
	}{
		"default": {once.Policy{}, "2592000;answer=259200"},
		"longer":  {once.Policy{KeepOutcome: 60 * 24 * time.Hour}, "5184000;answer=5184000"},
		"shorter": {once.Policy{KeepOutcome: time.Minute, KeepKey: time.Hour}, "3600;answer=60"},
	} {
		t.Run(name, func(t *testing.T) {
			onEachForm(t, created, &httponce.Options{TellLifetime: true, Policy: test.policy}, func(t *testing.T, s *service) {
				for _, a := range []answer{s.send("k", "1"), s.send("k", "1"), s.send("k", "2")} {
					if got := a.header.Values(httponce.LifetimeHeader); len(got) != 1 || got[0] != test.want {
						t.Errorf("%d: %q, want %s", a.status, got, test.want)
					}
				}
			})
		})
	}
}
