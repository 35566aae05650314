package httponce_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// tenant is a Caller for tests.
func tenant(r *http.Request) (string, error) {
	name := r.Header.Get("Tenant")
	if name == "forged" {
		return "", errors.New("who is that")
	}
	return name, nil
}

// service is a server with one guarded handler, in one of the two forms.
type service struct {
	t     *testing.T
	store *memstore.Store
	url   string
	runs  atomic.Int64

	client *http.Client // default: the usual one
}

// forms are both ways to guard a handler. They respond alike unless a test says
// otherwise.
var forms = map[string]func(*service, http.HandlerFunc, *httponce.Options) http.Handler{
	"Handler": func(s *service, h http.HandlerFunc, o *httponce.Options) http.Handler {
		return httponce.Handler(s.store, tenant, s.counted(h), o)
	},
	"HandlerTx": func(s *service, h http.HandlerFunc, o *httponce.Options) http.Handler {
		return httponce.HandlerTx(s.store, tenant, func(w http.ResponseWriter, r *http.Request, tx *memstore.Tx) error {
			s.counted(h).ServeHTTP(w, r)
			return nil
		}, o)
	},
}

func (s *service) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h.ServeHTTP(w, r)
	})
}

func onEachForm(t *testing.T, h http.HandlerFunc, o *httponce.Options, check func(t *testing.T, s *service)) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(form(s, h, o))
			t.Cleanup(server.Close)
			s.url = server.URL
			check(t, s)
		})
	}
}

// answer is a response that was read.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
}

func (a answer) replayed() bool { return a.header.Get(httponce.ReplayedHeader) == "true" }

// problem is the end of the type of a problem document.
func (a answer) problem() string {
	var document struct {
		Type, Title, Detail string
		Status              int
		Error               struct {
			Type, Code, Message string
			DocURL              string `json:"doc_url"`
		}
	}
	if a.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(a.body), &document) != nil || document.Status != a.status {
		return ""
	}
	name, like := document.Type[strings.LastIndexAny(document.Type, "#/")+1:], document.Error
	if like.Code != name || like.DocURL != document.Type || like.Message != strings.TrimSpace(document.Title+". "+document.Detail) || likeStripe[document.Status] != like.Type {
		return name + ", with another error: " + a.body
	}
	return name
}

// likeStripe are the types of errors in problem documents.
var likeStripe = map[int]string{400: "invalid_request_error", 401: "authentication_error", 409: "idempotency_error", 410: "idempotency_error",
	413: "invalid_request_error", 422: "idempotency_error", 429: "rate_limit_error", 500: "api_error", 503: "api_error"}

// send sends a request. change may change it first.
func (s *service) send(key, body string, change ...func(*http.Request)) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/payments?a=1", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Tenant", "acme")
	if key != "" {
		r.Header.Set(httponce.KeyHeader, key)
	}
	for _, c := range change {
		c(r)
	}
	return s.do(r)
}

func (s *service) do(r *http.Request) answer {
	s.t.Helper()
	resp, err := cmp.Or(s.client, http.DefaultClient).Do(r)
	if err != nil {
		s.t.Errorf("%v", err)
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Errorf("%v", err)
	}
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer}
}

func (s *service) wantRuns(n int64) {
	s.t.Helper()
	if got := s.runs.Load(); got != n {
		s.t.Errorf("the handler ran %d times, want %d", got, n)
	}
}

func (s *service) wantProblem(a answer, status int, name string) {
	s.t.Helper()
	if a.status != status || a.problem() != name {
		s.t.Errorf("got %d %s %s, want %d and the problem %s", a.status, a.header, a.body, status, name)
	}
	if !strings.Contains(a.header.Get("Link"), "help") {
		s.t.Errorf("no link to the documentation: %v", a.header)
	}
}

func created(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Location", "/payments/7")
	w.Header().Set("Set-Cookie", "session=secret")
	w.Header().Set("X-Trace", "abc")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"paid":%q}`, body)
}

func TestFirstAndRepeat(t *testing.T) {
	onEachForm(t, created, nil, func(t *testing.T, s *service) {
		first := s.send(`"k-1"`, "10")
		if first.status != 201 || first.body != `{"paid":"10"}` || first.replayed() || first.header.Get("Set-Cookie") == "" || first.header.Get("X-Trace") == "" {
			t.Errorf("the first got %+v", first)
		}
		again := s.send("k-1", "10") // the same key without quotes
		if again.status != 201 || again.body != first.body || !again.replayed() || again.header.Get("Location") != "/payments/7" ||
			again.header.Get("Content-Type") != "application/json" {
			t.Errorf("the repeat got %+v", again)
		}
		if again.header.Get("Set-Cookie") != "" || again.header.Get("X-Trace") != "" {
			t.Errorf("the repeat got headers that are not replayed: %v", again.header)
		}
		s.wantRuns(1)
	})
}

func TestKeys(t *testing.T) {
	onEachForm(t, created, &httponce.Options{Required: true, CheckKey: func(key string) error {
		if key == "refused" {
			return errors.New("not this one")
		}
		return nil
	}}, func(t *testing.T, s *service) {
		s.wantProblem(s.send("", "1"), 400, "key-missing")
		for _, key := range []string{`""`, `"a`, `a b`, `a,b`, `"a", "b"`, `"a" "b"`, `12;a=b`, `"é"`, "\xff", strings.Repeat("x", 256), `"` + strings.Repeat("x", 256) + `"`, "refused", `a"b`, `a\b`, "(1 2)", "tab\tin"} {
			s.wantProblem(s.send(key, "1"), 400, "key-malformed")
		}
		s.wantProblem(s.send("", "1", func(r *http.Request) { r.Header[httponce.KeyHeader] = []string{"a", "b"} }), 400, "key-malformed")
		s.wantProblem(s.send("", "1", func(r *http.Request) { r.Header[httponce.KeyHeader] = []string{"a", "a"} }), 400, "key-malformed")
		s.wantRuns(0)
		for i, key := range []string{"x", `"y"`, `"a b, c;d"`, `"q\"uote"`, `"p";v=1`, strings.Repeat("x", 255), "8e03978e-40d5-43dd-bc93-6894a57f9324", "a.b:c/d+e=f_g~h"} {
			if a := s.send(key, "1"); a.status != 201 {
				t.Errorf("%s: %+v", key, a)
			}
			s.wantRuns(int64(i + 1))
		}
	})
}

func TestCallers(t *testing.T) {
	as := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Tenant", name) } }
	onEachForm(t, created, nil, func(t *testing.T, s *service) {
		s.wantProblem(s.send("k", "1", as("forged")), 401, "caller-unknown")
		s.wantProblem(s.send("k", "1", as("")), 401, "caller-unknown")
		s.wantProblem(s.send("k", "1", as(strings.Repeat("x", 300))), 500, "misconfigured")
		s.wantRuns(0)
		for _, name := range []string{"acme", "other"} {
			if a := s.send("k", "1", as(name)); a.status != 201 || a.replayed() {
				t.Errorf("%s: %+v", name, a)
			}
		}
		s.wantRuns(2)
	})
}

func TestAnotherRequest(t *testing.T) {
	onEachForm(t, created, nil, func(t *testing.T, s *service) {
		s.send("k", "1")
		for name, change := range map[string]func(*http.Request){
			"body":   func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("2")), 1 },
			"query":  func(r *http.Request) { r.URL.RawQuery = "a=2" },
			"path":   func(r *http.Request) { r.URL.Path = "/refunds" },
			"method": func(r *http.Request) { r.Method = http.MethodPut },
			"split":  func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/payment", "sa=1" },
		} {
			if a := s.send("k", "1", change); a.status != 422 || a.problem() != "key-reused" {
				t.Errorf("another %s: %+v", name, a)
			}
		}
		s.wantRuns(1)
	})
}

func TestCanonicalJSON(t *testing.T) {
	onEachForm(t, created, &httponce.Options{Fingerprint: httponce.CanonicalJSON}, func(t *testing.T, s *service) {
		s.send("k", `{"a":1,"b":"x"}`)
		if a := s.send("k", ` { "b" : "x", "a" : 1.0 }`); !a.replayed() {
			t.Errorf("the same in other words: %+v", a)
		}
		s.wantProblem(s.send("k", `{"a":2,"b":"x"}`), 422, "key-reused")
		s.wantProblem(s.send("k", `no json`), 422, "key-reused")
	})
}

func TestBodies(t *testing.T) {
	onEachForm(t, created, &httponce.Options{MaxBody: 100}, func(t *testing.T, s *service) {
		s.wantProblem(s.send("k", strings.Repeat("x", 101)), 413, "body-too-large")
		s.wantProblem(s.send("k", strings.Repeat("x", 101), func(r *http.Request) { r.ContentLength = -1 }), 413, "body-too-large")
		s.wantRuns(0)
		if a := s.send("k", strings.Repeat("x", 100)); a.status != 201 || !strings.Contains(a.body, strings.Repeat("x", 100)) {
			t.Errorf("%+v", a)
		}
		if a := s.send("empty", "", func(r *http.Request) { r.Body = nil }); a.status != 201 {
			t.Errorf("%+v", a)
		}
	})
}

func TestWhatIsRecorded(t *testing.T) {
	status := 0
	var mu sync.Mutex
	handler := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Query().Get("nothing") != "" {
			httponce.NotDone(w)
		}
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			fmt.Fprint(w, "answer")
		}
	}
	for form := range forms {
		for _, test := range []struct {
			status int
			second string
		}{
			{200, "replay"}, {204, "replay"}, {303, "replay"}, {304, "replay"}, {400, "replay"}, {404, "replay"}, {409, "replay"}, {422, "replay"},
			{408, "run"}, {425, "run"}, {429, "run"},
			{500, "unknown"}, {502, "unknown"}, {503, "unknown"}, {504, "unknown"},
		} {
			t.Run(fmt.Sprint(form, "/", test.status), func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				server := httptest.NewServer(forms[form](s, handler, nil))
				defer server.Close()
				s.url, status = server.URL, test.status
				first, second := s.send("k", "1"), s.send("k", "1")
				want := test.second
				if want == "unknown" && form == "HandlerTx" {
					want = "run" // it was rolled back
				}
				if first.status != test.status || first.replayed() {
					t.Errorf("the first got %+v", first)
				}
				switch want {
				case "replay":
					s.wantRuns(1)
					if second.status != test.status || !second.replayed() || second.body != first.body || second.header.Get("Content-Type") != first.header.Get("Content-Type") {
						t.Errorf("the first got %+v, the second %+v", first, second)
					}
				case "run":
					s.wantRuns(2)
				case "unknown":
					s.wantRuns(1)
					s.wantProblem(second, 409, "outcome-unknown")
					if second.header.Get("Retry-After") == "" {
						t.Error("no Retry-After")
					}
				}
				s.runs.Store(0)
				nothing := func(r *http.Request) { r.URL.RawQuery = "nothing=1" }
				s.send("free", "1", nothing)
				s.send("free", "1", nothing)
				s.wantRuns(2)
			})
		}
	}
}

func TestDecide(t *testing.T) {
	decide := func(_ *http.Request, status int) httponce.Decision {
		return map[int]httponce.Decision{500: httponce.Record, 404: httponce.Release}[status]
	}
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var status int
		fmt.Sscan(string(body), &status)
		w.WriteHeader(status)
	}, &httponce.Options{Decide: decide}, func(t *testing.T, s *service) {
		for body, runs := range map[string]int64{"500": 1, "404": 2, "201": 1} {
			s.runs.Store(0)
			s.send("k"+body, body)
			s.send("k"+body, body)
			s.wantRuns(runs)
		}
	})
}

func TestCrowd(t *testing.T) {
	release := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		<-release
		created(w, r)
	}
	for _, wait := range []time.Duration{0, once.NoWait} {
		release = make(chan struct{})
		onEachForm(t, handler, &httponce.Options{Policy: once.Policy{Wait: wait}}, func(t *testing.T, s *service) {
			release = make(chan struct{})
			const crowd = 64
			answers := make(chan answer, crowd)
			for range crowd {
				go func() { answers <- s.send("k", "1") }()
			}
			var all []answer
			if wait == once.NoWait {
				for range crowd - 1 {
					all = append(all, <-answers)
				}
				for _, a := range all {
					s.wantProblem(a, 409, "in-progress")
					if after := a.header.Get("Retry-After"); after == "" || after == "0" {
						t.Errorf("Retry-After: %q", after)
					}
				}
				close(release)
				all = append(all[:0], <-answers)
			} else {
				close(release)
				for range crowd {
					all = append(all, <-answers)
				}
			}
			first := 0
			for _, a := range all {
				if a.status != 201 || a.body != `{"paid":"1"}` {
					t.Errorf("%+v", a)
				}
				if !a.replayed() {
					first++
				}
			}
			if first != 1 {
				t.Errorf("%d were the first", first)
			}
			s.wantRuns(1)
		})
	}
}

func TestLargeResponse(t *testing.T) {
	large := strings.Repeat("large ", 1000)
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/there")
		for range 10 {
			_, _ = io.WriteString(w, large)
		}
	}, &httponce.Options{MaxResponse: 1000}, func(t *testing.T, s *service) {
		if a := s.send("k", "1"); a.status != 200 || len(a.body) != 10*len(large) {
			t.Errorf("the first got %d and %d bytes", a.status, len(a.body))
		}
		a := s.send("k", "1")
		s.wantProblem(a, 410, "answer-not-kept")
		if !a.replayed() || a.header.Get("Location") != "/there" || !strings.Contains(a.body, `"answer_status":200`) {
			t.Errorf("the repeat got %+v", a)
		}
		s.wantRuns(1)
	})
}

func TestPanics(t *testing.T) {
	var wild atomic.Bool
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		if wild.Load() {
			w.WriteHeader(201)
			panic(http.ErrAbortHandler)
		}
	}, nil, func(t *testing.T, s *service) {
		wild.Store(true)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, http.NoBody)
		r.Header.Set("Tenant", "acme")
		r.Header.Set(httponce.KeyHeader, "k")
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
			t.Errorf("got %v, want a connection that is cut off", resp.Status)
		}
		wild.Store(false)
		second := s.do(r.Clone(t.Context()))
		if strings.Contains(t.Name(), "HandlerTx") {
			s.wantRuns(2)
		} else {
			s.wantProblem(second, 409, "outcome-unknown")
			s.wantRuns(1)
		}
	})
}

func TestClientLeaves(t *testing.T) {
	working, finish := make(chan struct{}, 1), make(chan struct{})
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		<-finish
		if r.Context().Err() != nil {
			w.WriteHeader(500)
			return
		}
		created(w, r)
	}, nil, func(t *testing.T, s *service) {
		finish = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/payments?a=1", strings.NewReader("1"))
			r.Header.Set("Tenant", "acme")
			r.Header.Set(httponce.KeyHeader, "k")
			_, err := http.DefaultClient.Do(r)
			left <- err
		}()
		<-working
		cancel()
		if err := <-left; err == nil {
			t.Error("it has not left")
		}
		again := make(chan answer)
		go func() { again <- s.send("k", "1") }()
		close(finish)
		if a := <-again; a.status != 201 || !a.replayed() {
			t.Errorf("the next got %+v", a)
		}
		s.wantRuns(1)
	})
}

// broken is a store that cannot be reached.
type broken struct {
	*memstore.Store
	claims, settles atomic.Bool
}

var errDown = errors.New("connection refused")

func (b *broken) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if b.claims.Load() {
		return once.Record{}, errDown
	}
	return b.Store.Claim(ctx, r)
}

func (b *broken) Settle(ctx context.Context, set once.Settlement) error {
	if b.settles.Load() {
		return errDown
	}
	return b.Store.Settle(ctx, set)
}

func TestStoreDown(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := &service{t: t}
		store := &broken{Store: memstore.New(nil)}
		server := httptest.NewServer(httponce.Handler(store, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{FailOpen: open}))
		defer server.Close()
		s.url = server.URL
		store.claims.Store(true)
		a := s.send("k", "1")
		if open {
			s.wantRuns(1)
			if a.status != 201 || a.body != `{"paid":"1"}` {
				t.Errorf("%+v", a)
			}
			continue
		}
		s.wantProblem(a, 503, "unavailable")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		s.wantRuns(0)
	}
}

func TestSafeMethodsPass(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, func(http.ResponseWriter, *http.Request) {}, &httponce.Options{Required: true}))
	defer server.Close()
	s.url = server.URL
	for i, method := range []string{"GET", "HEAD", "OPTIONS"} {
		for range 2 {
			if a := s.send("k", "", func(r *http.Request) { r.Method = method }); a.status != 200 || a.replayed() {
				t.Errorf("%s: %+v", method, a)
			}
		}
		s.wantRuns(int64(2 * (i + 1)))
	}
}

func TestExpired(t *testing.T) {
	onEachForm(t, created, &httponce.Options{Policy: once.Policy{KeepOutcome: time.Millisecond, KeepKey: time.Hour}}, func(t *testing.T, s *service) {
		s.send("k", "1")
		var a answer
		for a = s.send("k", "1"); a.replayed(); a = s.send("k", "1") {
		}
		s.wantProblem(a, 410, "answer-expired")
		s.wantRuns(1)
	})
}

func TestSealed(t *testing.T) {
	secret := func(id string) httponce.Secret { return httponce.Secret{ID: id, Bytes: bytes.Repeat([]byte(id), 32)} }
	ring := func(ids ...string) *httponce.Ring {
		var all []httponce.Secret
		for _, id := range ids {
			all = append(all, secret(id))
		}
		r, err := httponce.NewRing(all...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			use := func(r *httponce.Ring) {
				server := httptest.NewServer(form(s, created, &httponce.Options{Ring: r}))
				t.Cleanup(server.Close)
				s.url = server.URL
			}
			use(ring("a"))
			s.send("k", "very secret")
			page, err := s.store.List(t.Context(), once.RecordQuery{})
			if err != nil || len(page.Records) != 1 {
				t.Fatal(page, err)
			}
			rec, _ := s.store.Get(t.Context(), page.Records[0].Key)
			if bytes.Contains(rec.Outcome.Body, []byte("secret")) || rec.Outcome.ContentType != "application/http; sealed=a" {
				t.Errorf("stored: %q %q", rec.Outcome.ContentType, rec.Outcome.Body)
			}
			use(ring("b", "a"))
			if a := s.send("k", "very secret"); !a.replayed() || a.body != `{"paid":"very secret"}` {
				t.Errorf("after a change of secrets: %+v", a)
			}
			s.wantProblem(s.send("k", "another"), 422, "key-reused")
			s.wantRuns(1)
			use(ring("b"))
			s.wantProblem(s.send("k", "very secret"), 422, "key-reused") // nobody can tell that it is the same
			s.wantRuns(1)
		})
	}
}

func TestLimits(t *testing.T) {
	onEachForm(t, created, &httponce.Options{Limits: httponce.Limits{PerSecond: 0.001, Burst: 2}}, func(t *testing.T, s *service) {
		for i, key := range []string{"a", "a", "a", "b", "a", "b"} {
			if a := s.send(key, "1"); a.status != 201 {
				t.Errorf("request %d: %+v", i, a)
			}
		}
		a := s.send("c", "1")
		s.wantProblem(a, 429, "too-many-requests")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		if a := s.send("a", "1"); !a.replayed() {
			t.Errorf("a repeat of a caller over its limits: %+v", a)
		}
		if a := s.send("c", "1", func(r *http.Request) { r.Header.Set("Tenant", "other") }); a.status != 201 {
			t.Errorf("another caller: %+v", a)
		}
		s.wantRuns(3)
	})
}
