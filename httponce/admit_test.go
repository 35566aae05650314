package httponce_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission/admissiontest"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// newRoom returns an Admit with free places.
func newRoom(free int) *admissiontest.Room {
	return admissiontest.NewRoom(free, 6500*time.Millisecond)
}

func TestANewKeyNeedsRoomAndAKnownOneDoesNot(t *testing.T) {
	for name := range forms {
		t.Run(name, func(t *testing.T) {
			r := newRoom(1)
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(forms[name](s, created, &httponce.Options{Admit: r.Admit}))
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
			r.Add(1)
			if a := s.send("b", "1"); a.status != 201 || a.replayed() {
				t.Errorf("what was refused, when there is room: %+v", a)
			}
			s.wantRuns(2)
			r.WantLeft(t, "acme a true", "acme b true")
		})
	}
}

// Whether a request has left a record that was not there before.
func TestACallThatLeftARecordKeepsItsPlace(t *testing.T) {
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
		r := newRoom(1000)
		s := &service{t: t, store: memstore.New(nil)}
		h := forms[name](s, handler, &httponce.Options{Admit: r.Admit, Policy: once.Policy{Wait: once.NoWait}})
		server := httptest.NewServer(h)
		defer server.Close()
		s.url = server.URL
		for _, what := range []string{"refuse", "release", "fail"} {
			t.Run(name+" "+what, func(t *testing.T) {
				s.send(what, "1", func(r *http.Request) { r.Header.Set("Do", what) })
				r.WantLeft(t, "acme "+what+" "+kept[what])
				s.send(what, "1") // replayed, run again as the second attempt, or run for the first time
				again := map[string]string{"true": "false", "false": "true"}[kept[what]]
				r.WantLeft(t, "acme "+what+" "+again)
				s.send(what, "1")
				r.WantLeft(t, "acme "+what+" false")
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
		r.WantLeft(t, "acme panic true") // in a transaction it is not known here
	}
}

// A released key is known. Without room, it runs again and takes no place.
func TestAReleasedKeyWhereThereIsNoRoom(t *testing.T) {
	r := newRoom(1)
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Late") == "" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}, &httponce.Options{Admit: r.Admit}))
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

// Another process makes the first attempt between the look-up of a key and its
// refusal. The refusal is wrong, and harmless.
func TestAKeyThatIsDoneElsewhereMeanwhileMayBeRefused(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	elsewhere := forms["Handler"](s, created, nil)
	full := &admissiontest.HookedStore{Store: s.store}
	here := httponce.Handler(full, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: newRoom(0).Admit})
	send := func(h http.Handler) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1"))
		r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	full.AfterGet = func(rec once.Record, err error) (once.Record, error) {
		full.AfterGet = nil
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

// If the store cannot be read, nothing runs, unless FailOpen is set.
func TestWithoutRoomAndStoreNothingRuns(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := &service{t: t, store: memstore.New(nil)}
		down := &admissiontest.HookedStore{Store: s.store, AfterGet: func(once.Record, error) (once.Record, error) { return once.Record{}, errors.New("down") }}
		h := httponce.Handler(down, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: newRoom(0).Admit, FailOpen: open})
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

// A client that disconnects while its key is claimed has left a record although
// nothing has run.
func TestAClientThatLeavesAfterItsClaimKeepsItsPlace(t *testing.T) {
	r := newRoom(1)
	s := &service{t: t, store: memstore.New(nil)}
	ctx, hangUp := context.WithCancel(t.Context())
	h := httponce.Handler(&admissiontest.HookedStore{Store: s.store, AfterClaim: hangUp}, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: r.Admit})
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("1"))
	req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
	h.ServeHTTP(httptest.NewRecorder(), req)
	s.wantRuns(0)
	if rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "k"}); err != nil || rec.Attempt != 1 {
		t.Fatalf("there is %+v, %v: that forces nothing", rec, err)
	}
	r.WantLeft(t, "acme k true")
}

// A key that Limits admit and Admit refuses uses nothing of the limits.
func TestAKeyThatAdmitRefusesCostsNothingOfTheLimits(t *testing.T) {
	r := newRoom(0)
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(forms["Handler"](s, created, &httponce.Options{Admit: r.Admit,
		Limits: httponce.Limits{Open: 1, PerSecond: 1e-9, Burst: 1}}))
	defer server.Close()
	s.url = server.URL
	for i := range 3 {
		s.wantProblem(s.send(fmt.Sprint("before", i), "1"), 429, "too-many-requests")
	}
	r.Add(10)
	if a := s.send("a", "1"); a.status != 201 {
		t.Errorf("when there is room: %+v", a)
	}
	s.wantProblem(s.send("b", "1"), 429, "too-many-requests")
	if a := s.send("a", "1"); !a.replayed() {
		t.Errorf("a repeat over the limits: %+v", a)
	}
	r.WantLeft(t, "acme a true", "acme a false") // Admit is not asked about what Limits refuse
}

// late is a store that lets a duplicate into the handler before it loses the
// claim, as pgstore may.
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

// A duplicate that has entered the handler speculatively has left no record.
func TestASpeculativeDuplicateKeepsNoPlace(t *testing.T) {
	r, runs := newRoom(2), 0
	h := httponce.HandlerTx(late{memstore.New(nil)}, tenant, func(w http.ResponseWriter, _ *http.Request, _ *memstore.Tx) error {
		runs++
		w.WriteHeader(http.StatusCreated)
		return nil
	}, &httponce.Options{Admit: r.Admit, Speculative: true})
	for _, body := range []string{"1", "1", "2"} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
	if runs != 4 {
		t.Fatalf("the handler was entered %d times, want 4: that forces nothing", runs)
	}
	r.WantLeft(t, "acme k true", "acme k false", "acme k false")
}

// An abandoned claim leaves a record although nothing runs. It keeps its place.
// Otherwise a client that disconnects at the right moment could fill the store
// for free.
func TestAClientThatLeavesDuringItsClaimKeepsItsPlace(t *testing.T) {
	for _, when := range admissiontest.Moments {
		t.Run(when.String(), func(t *testing.T) {
			r := newRoom(5)
			s := &service{t: t, store: memstore.New(nil)}
			send := func(store once.Store, ctx context.Context, body string) {
				h := httponce.Handler(store, tenant, s.counted(http.HandlerFunc(created)), &httponce.Options{Admit: r.Admit})
				req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
				req.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"k"}}
				h.ServeHTTP(httptest.NewRecorder(), req)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			send(&admissiontest.DisconnectStore{Store: s.store, When: when, Disconnect: hangUp}, ctx, "1")
			s.wantRuns(0)
			rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "k"})
			if err != nil || rec.Status != once.Absent || rec.Attempt != 1 {
				t.Fatalf("there is %+v, %v: that forces nothing", rec, err)
			}
			r.WantLeft(t, "acme k true")

			send(s.store, t.Context(), "1")
			s.wantRuns(1)
			r.WantLeft(t, "acme k false")
		})
	}
}

// Limits also count the key as a new one.
func TestAClientThatLeavesDuringItsClaimUsesItsRate(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	ctx, hangUp := context.WithCancel(t.Context())
	h := httponce.Handler(&admissiontest.DisconnectStore{Store: s.store, When: admissiontest.ReplyLost, Disconnect: hangUp}, tenant, s.counted(http.HandlerFunc(created)),
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
func TestAPanicOfAdmitReturnsThePlaceInTheLimits(t *testing.T) {
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
