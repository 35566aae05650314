package httponce_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// A running service gets a Ring, and then another secret, process by process.
// No step treats a repeat as another request.
func TestSecretsAreRolledOut(t *testing.T) {
	a, b := httponce.Secret{ID: "a", Bytes: bytes.Repeat([]byte("a"), 32)}, httponce.Secret{ID: "b", Bytes: bytes.Repeat([]byte("b"), 32)}
	steps := [][]httponce.Secret{nil, {{}, a}, {a}, {a, b}, {b, a}}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			urls := make([]string, len(steps))
			for i, secrets := range steps {
				o := new(httponce.Options)
				if secrets != nil {
					ring, err := httponce.NewRing(secrets...)
					if err != nil {
						t.Fatal(err)
					}
					o.Ring = ring
				}
				server := httptest.NewServer(form(s, created, o))
				t.Cleanup(server.Close)
				urls[i] = server.URL
			}
			for i := range steps { // a request that one process has answered is repeated to those one step further or behind
				s.url = urls[i]
				key := fmt.Sprint("k", i)
				s.send(key, "1")
				for _, other := range []int{i - 1, i, i + 1} {
					if other < 0 || other == len(steps) {
						continue
					}
					s.url = urls[other]
					if got := s.send(key, "1"); !got.replayed() || got.status != 201 {
						t.Errorf("of step %d, at step %d: %+v", i, other, got)
					}
					s.wantProblem(s.send(key, "2"), 422, "key-reused")
				}
			}
			s.wantRuns(int64(len(steps)))
		})
	}
}

// A response that a person has recorded is replayed like any other.
func TestAPersonSettlesARequest(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, nil))
	defer server.Close()
	s.url = server.URL
	s.send("k", "1")
	a := s.send("k", "1")
	s.wantProblem(a, 409, "outcome-unknown")
	if a.header.Get("Retry-After") != "300" {
		t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
	}
	page, err := s.store.List(t.Context(), once.RecordQuery{})
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	found := httponce.Response{Status: 201, Header: http.Header{"Location": {"/payments/7"}}, Body: []byte("paid")}
	out, err := found.Outcome()
	if err != nil {
		t.Fatal(err)
	}
	if err := once.MarkDone(t.Context(), s.store, page.Records[0], out, "the bank says so"); err != nil {
		t.Fatal(err)
	}
	if a := s.send("k", "1"); a.status != 201 || a.body != "paid" || a.header.Get("Location") != "/payments/7" || !a.replayed() {
		t.Errorf("%+v", a)
	}
	s.wantRuns(1)
}

// Waiting repeats of one key do not take the places of other keys.
func TestRepeatsAreOneOpenKey(t *testing.T) {
	release := make(chan struct{})
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Slow") != "" {
			<-release
		}
		created(w, r)
	}, &httponce.Options{Limits: httponce.Limits{Open: 2, PerSecond: 0.001, Burst: 2}}))
	defer server.Close()
	s.url = server.URL
	const repeats = 8
	answers := make(chan answer, repeats)
	slow := func(r *http.Request) { r.Header.Set("Slow", "1") }
	for range repeats {
		go func() { answers <- s.send("slow", "1", slow) }()
	}
	for deadline := time.Now().Add(testenv.Patience); s.runs.Load() == 0 && time.Now().Before(deadline); {
	}
	if a := s.send("other", "1"); a.status != 201 {
		t.Errorf("another key: %+v", a)
	}
	close(release)
	for range repeats {
		if a := <-answers; a.status != 201 {
			t.Errorf("a repeat: %+v", a)
		}
	}
	s.wantProblem(s.send("third", "1"), 429, "too-many-requests")
}

// An error of the handler that says when to come back is passed on.
func TestAFailedTransactionPassesOnItsRetryAfter(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(httponce.HandlerTx(s.store, tenant, func(http.ResponseWriter, *http.Request, *memstore.Tx) error {
		return once.RetryAfter(7*time.Second, fmt.Errorf("the bank is closed"))
	}, nil))
	defer server.Close()
	s.url = server.URL
	a := s.send("k", "1")
	s.wantProblem(a, 503, "rolled-back")
	if a.header.Get("Retry-After") != "7" {
		t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
	}
}
