package httponce_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// room is an Admit with so many places, which writes down who has left.
type room struct {
	mu     sync.Mutex
	places int
	left   []string
}

func (r *room) admit(key once.Key) (leave func(kept bool), wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places == 0 {
		return nil, 6500 * time.Millisecond
	}
	r.places--
	return func(kept bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left = append(r.left, fmt.Sprint(key.Scope, " ", key.ID, " ", kept))
		if !kept {
			r.places++
		}
	}, 0
}

func (r *room) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places += n
}

func (r *room) wantLeft(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.left, want) {
		t.Errorf("left: %q, want %q", r.left, want)
	}
	r.left = nil
}

func TestAdmit(t *testing.T) {
	for name := range forms {
		t.Run(name, func(t *testing.T) {
			r := &room{places: 1}
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(forms[name](s, created, &httponce.Options{Admit: r.admit}))
			defer server.Close()
			s.url = server.URL
			if a := s.send("a", "1"); a.status != 201 {
				t.Errorf("the first: %+v", a)
			}
			a := s.send("b", "1")
			s.wantProblem(a, 429, "too-many-requests")
			if after := a.header.Get("Retry-After"); after != "7" {
				t.Errorf("Retry-After: %s, want 7", after)
			}
			if a := s.send("a", "1"); a.status != 201 || !a.replayed() {
				t.Errorf("a repeat where there is no room: %+v", a)
			}
			s.wantProblem(s.send("a", "2"), 422, "key-reused")
			s.wantRuns(1)
			rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "b"})
			if err != nil || rec.Attempt != 0 {
				t.Errorf("what was refused has left %+v, %v", rec, err)
			}
			r.add(1)
			if a := s.send("b", "1"); a.status != 201 || a.replayed() {
				t.Errorf("what was refused, when there is room: %+v", a)
			}
			s.wantRuns(2)
			r.wantLeft(t, "acme a true", "acme b true")
		})
	}
}

// Whether a request has left a record that was not there before.
func TestWhoKeepsAPlace(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Do") {
		case "refuse":
			w.WriteHeader(http.StatusPaymentRequired)
		case "release":
			w.WriteHeader(http.StatusTooManyRequests)
		case "fail":
			w.WriteHeader(http.StatusBadGateway)
		case "panic":
			panic(http.ErrAbortHandler)
		default:
			created(w, r)
		}
	}
	for name, kept := range map[string]map[string]string{
		"Handler":   {"refuse": "true", "release": "true", "fail": "true"},
		"HandlerTx": {"refuse": "true", "release": "false", "fail": "false"},
	} {
		r := &room{places: 1000}
		s := &service{t: t, store: memstore.New(nil)}
		h := forms[name](s, handler, &httponce.Options{Admit: r.admit, Policy: once.Policy{Wait: once.NoWait}})
		server := httptest.NewServer(h)
		defer server.Close()
		s.url = server.URL
		for _, what := range []string{"refuse", "release", "fail"} {
			t.Run(name+" "+what, func(t *testing.T) {
				s.send(what, "1", func(r *http.Request) { r.Header.Set("Do", what) })
				r.wantLeft(t, "acme "+what+" "+kept[what])
				s.send(what, "1") // replayed, run again as the second attempt, or run for the first time
				again := map[string]string{"true": "false", "false": "true"}[kept[what]]
				r.wantLeft(t, "acme "+what+" "+again)
				s.send(what, "1")
				r.wantLeft(t, "acme "+what+" false")
			})
		}
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1"))
		req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"panic"}, "Do": {"panic"}}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not pass on")
				}
			}()
			h.ServeHTTP(httptest.NewRecorder(), req)
		}()
		r.wantLeft(t, "acme panic true") // in a transaction it is not known here
	}
}

// A key that was released is known: where there is no room, it is run again, and takes none.
func TestAReleasedKeyWhereThereIsNoRoom(t *testing.T) {
	r := &room{places: 1}
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Late") == "" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}, &httponce.Options{Admit: r.admit}))
	defer server.Close()
	s.url = server.URL
	if a := s.send("a", "1"); a.status != 429 || a.problem() != "" {
		t.Errorf("the first: %+v", a)
	}
	if a := s.send("a", "1", func(r *http.Request) { r.Header.Set("Late", "1") }); a.status != 200 || a.replayed() {
		t.Errorf("its repeat: %+v", a)
	}
	s.wantProblem(s.send("b", "1"), 429, "too-many-requests")
	s.wantRuns(2)
}

// looked is a store of which a test sees each Get and each Claim.
type looked struct {
	*memstore.Store
	get   func(once.Record, error) (once.Record, error)
	claim func()
}

func (s *looked) Get(ctx context.Context, key once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, key)
	if s.get != nil {
		return s.get(rec, err)
	}
	return rec, err
}

func (s *looked) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	rec, err := s.Store.Claim(ctx, r)
	if s.claim != nil {
		s.claim()
	}
	return rec, err
}

// The first attempt is made elsewhere between the look at a key and its refusal. The refusal is a wrong one, and harmless.
func TestRefusedWhileItIsDoneElsewhere(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	elsewhere := forms["Handler"](s, created, nil)
	full := &looked{Store: s.store}
	here := httponce.Handler(full, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: new(room).admit})
	send := func(h http.Handler) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1"))
		r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	full.get = func(rec once.Record, err error) (once.Record, error) {
		full.get = nil
		if w := send(elsewhere); w.Code != 201 {
			t.Errorf("elsewhere: %d", w.Code)
		}
		return rec, err
	}
	if w := send(here); w.Code != 429 {
		t.Errorf("here: %d, want 429", w.Code)
	}
	if w := send(here); w.Code != 201 || w.Header().Get(httponce.ReplayedHeader) != "true" {
		t.Errorf("its repeat: %d, %v", w.Code, w.Header())
	}
	s.wantRuns(1)
}

// Where nobody can tell whether a key is known, nothing runs, unless the options say so.
func TestNoRoomAndNoStore(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := &service{t: t, store: memstore.New(nil)}
		down := &looked{Store: s.store, get: func(once.Record, error) (once.Record, error) { return once.Record{}, errors.New("down") }}
		h := httponce.Handler(down, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: new(room).admit, FailOpen: open})
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1"))
		r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want, runs := 503, int64(0)
		if open {
			want, runs = 201, 1
		}
		if w.Code != want {
			t.Errorf("FailOpen %t: %d, want %d", open, w.Code, want)
		}
		s.wantRuns(runs)
	}
}

// A client that hangs up while its key is claimed has left a record, although nothing has run.
func TestAPlaceOfAClientThatHasLeft(t *testing.T) {
	r := &room{places: 1}
	s := &service{t: t, store: memstore.New(nil)}
	ctx, hangUp := context.WithCancel(t.Context())
	h := httponce.Handler(&looked{Store: s.store, claim: hangUp}, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: r.admit})
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("1"))
	req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
	h.ServeHTTP(httptest.NewRecorder(), req)
	s.wantRuns(0)
	if rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "k"}); err != nil || rec.Attempt != 1 {
		t.Fatalf("there is %+v, %v: that forces nothing", rec, err)
	}
	r.wantLeft(t, "acme k true")
}

// What Limits have let in and Admit has not costs nothing of Limits.
func TestAdmitAfterLimits(t *testing.T) {
	r := new(room)
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, created, &httponce.Options{Admit: r.admit,
		Limits: httponce.Limits{Open: 1, PerSecond: 1e-9, Burst: 1}}))
	defer server.Close()
	s.url = server.URL
	for i := range 3 {
		s.wantProblem(s.send(fmt.Sprint("before", i), "1"), 429, "too-many-requests")
	}
	r.add(10)
	if a := s.send("a", "1"); a.status != 201 {
		t.Errorf("when there is room: %+v", a)
	}
	s.wantProblem(s.send("b", "1"), 429, "too-many-requests")
	if a := s.send("a", "1"); !a.replayed() {
		t.Errorf("a repeat over the limits: %+v", a)
	}
	r.wantLeft(t, "acme a true", "acme a false") // Admit is not asked about what Limits refuse
}

// late is a store that lets a duplicate into the handler before its claim is lost, as pgstore may.
type late struct{ *memstore.Store }

func (s late) Transact(ctx context.Context, rs []once.ClaimRequest, body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	if r := rs[0]; r.Speculative {
		r.Key.ID += ", in vain"
		_, _ = s.Store.Transact(ctx, []once.ClaimRequest{r}, func(tx *memstore.Tx, _ []once.Record) ([]once.Settlement, error) {
			_, _ = body(tx, []once.Record{{Key: rs[0].Key, Status: once.Running, Attempt: 1, Owner: r.Owner}})
			return nil, errors.New("the claim is lost")
		})
	}
	return s.Store.Transact(ctx, rs, body)
}

// A duplicate that has entered the handler in vain has left nothing.
func TestAPlaceOfADuplicateInTheHandler(t *testing.T) {
	r, runs := &room{places: 2}, 0
	h := httponce.HandlerTx(late{memstore.New(nil)}, tenant, func(w http.ResponseWriter, _ *http.Request, _ *memstore.Tx) error {
		runs++
		w.WriteHeader(http.StatusCreated)
		return nil
	}, &httponce.Options{Admit: r.admit, Speculative: true})
	for _, body := range []string{"1", "1", "2"} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
	if runs != 4 {
		t.Fatalf("the handler was entered %d times, want 4: that forces nothing", runs)
	}
	r.wantLeft(t, "acme k true", "acme k false", "acme k false")
}

// leaving is a store whose client leaves when its first claim is on its way: before it is made, when it is made and its
// answer is lost, or with the answer.
type leaving struct {
	*memstore.Store
	when   string
	hangUp func()
}

func (s *leaving) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	if s.hangUp == nil {
		return s.Store.Claim(ctx, r)
	}
	if s.when != "before" {
		rec, err = s.Store.Claim(ctx, r)
	}
	s.hangUp()
	s.hangUp = nil
	<-ctx.Done()
	if s.when != "answered" {
		return once.Record{}, ctx.Err()
	}
	return rec, err
}

// A claim that is given up leaves a record, and nothing runs. It takes its place: else who hangs up at the right moment
// fills the store for nothing.
func TestAPlaceOfAClientThatLeavesDuringItsClaim(t *testing.T) {
	for _, when := range []string{"before", "made", "answered"} {
		t.Run(when, func(t *testing.T) {
			r := &room{places: 5}
			s := &service{t: t, store: memstore.New(nil)}
			send := func(store once.Store, ctx context.Context, body string) {
				h := httponce.Handler(store, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: r.admit})
				req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
				req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
				h.ServeHTTP(httptest.NewRecorder(), req)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			send(&leaving{s.store, when, hangUp}, ctx, "1")
			s.wantRuns(0)
			rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "k"})
			if err != nil || rec.Status != once.Absent || rec.Attempt != 1 {
				t.Fatalf("there is %+v, %v: that forces nothing", rec, err)
			}
			r.wantLeft(t, "acme k true")

			send(s.store, t.Context(), "1")
			s.wantRuns(1)
			r.wantLeft(t, "acme k false")
		})
	}
}

// For Limits, too, such a key is a new one.
func TestLimitsOfAClientThatLeavesDuringItsClaim(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	ctx, hangUp := context.WithCancel(t.Context())
	h := httponce.Handler(&leaving{s.store, "made", hangUp}, tenant, s.counted(http.HandlerFunc(created)),
		&httponce.Options{Limits: httponce.Limits{PerSecond: 1e-9, Burst: 1}})
	for i, ctx := range []context.Context{ctx, t.Context()} {
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("1"))
		req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {fmt.Sprint(i)}}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, req); i == 1 && w.Code != http.StatusTooManyRequests {
			t.Errorf("the next key, over the rate, got %d", w.Code)
		}
	}
	s.wantRuns(0)
}

// A panic of Admit, which calls code of its user, takes no place for ever.
func TestLimitsWhereAdmitPanics(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	broken := true
	h := httponce.Handler(s.store, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Limits: httponce.Limits{Open: 1, PerSecond: 1e-9},
		Admit: func(once.Key) (func(bool), time.Duration) {
			if broken {
				panic("no limit is known")
			}
			return func(bool) {}, 0
		}})
	for _, key := range []string{"a", "b"} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1"))
		req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {key}}
		w := httptest.NewRecorder()
		func() {
			defer func() { broken = recover() == nil && broken }()
			h.ServeHTTP(w, req)
		}()
		if key == "b" && w.Code != http.StatusCreated {
			t.Errorf("the next key got %d", w.Code)
		}
	}
	s.wantRuns(1)
}
