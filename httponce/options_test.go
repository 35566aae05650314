package httponce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// TestARejectedResponseIsReplayed has a record with a rejection, found by a
// Lookup, or left by HandlerTx before its route was changed.
func TestARejectedResponseIsReplayed(t *testing.T) {
	refused := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPaymentRequired)
		fmt.Fprint(w, "no")
	}
	t.Run("changed form", func(t *testing.T) {
		for _, order := range [][2]string{{"HandlerTx", "Handler"}, {"Handler", "HandlerTx"}} {
			s := &service{t: t, store: memstore.New(nil)}
			for i, form := range order {
				server := httptest.NewServer(forms[form](s, refused, nil))
				defer server.Close()
				s.url = server.URL
				if a := s.send("k", "1"); a.status != 402 || a.body != "no" || a.replayed() != (i == 1) {
					t.Errorf("%v, request %d: %+v", order, i, a)
				}
			}
			s.wantRuns(1)
		}
	})
	t.Run("looked up", func(t *testing.T) {
		onEachForm(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, &httponce.Options{
			Policy: once.Policy{Lease: 50 * time.Millisecond},
			Lookup: func(context.Context, once.Key) (*httponce.Response, bool, error) {
				return &httponce.Response{Status: 402, Body: []byte("no")}, true, fmt.Errorf("card declined: %w", once.ErrRejected)
			}}, func(t *testing.T, s *service) {
			if strings.Contains(t.Name(), "HandlerTx") {
				return // it rolled back: there is nothing to look up
			}
			overTCP(t, strings.TrimPrefix(s.url, "http://"), posted)
			for range 2 {
				if again := overTCP(t, strings.TrimPrefix(s.url, "http://"), posted).final(); again.status != 402 || again.body != "no" || !again.replayed() {
					t.Errorf("the repeat got %+v", again)
				}
			}
			s.wantRuns(1)
		})
	})
}

// TestAFailedHandlerOfATransactionIsRolledBack has handlers that return errors
// of once. The client gets the problem that everything was rolled back.
func TestAFailedHandlerOfATransactionIsRolledBack(t *testing.T) {
	for name, err := range map[string]error{
		"rejected":    fmt.Errorf("a step said no: %w", once.ErrRejected),
		"not done":    once.NotDone(errors.New("x")),
		"permanent":   once.Permanent(errors.New("x")),
		"unknown":     fmt.Errorf("x: %w", once.ErrOutcomeUnknown),
		"mismatch":    fmt.Errorf("x: %w", once.ErrMismatch),
		"lease lost":  fmt.Errorf("x: %w", once.ErrLeaseLost),
		"in progress": fmt.Errorf("x: %w", once.ErrInProgress),
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			server := httptest.NewServer(httponce.HandlerTx(s.store, tenant, func(w http.ResponseWriter, _ *http.Request, _ *memstore.Tx) error {
				s.runs.Add(1)
				w.WriteHeader(201)
				return err
			}, nil))
			defer server.Close()
			s.url = server.URL
			s.wantProblem(s.send("k", "1"), 500, "rolled-back")
			s.wantProblem(s.send("k", "1"), 500, "rolled-back")
			s.wantRuns(2)
		})
	}
}

// TestAHeaderThatTheStoreHasNoRoomForIsNoOutage records a header that is too
// large for the store. That is not an outage of the store, so the response has
// no Retry-After.
func TestAHeaderThatTheStoreHasNoRoomForIsNoOutage(t *testing.T) {
	for name, form := range forms {
		s := &service{t: t, store: memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 20 << 10}})}
		server := httptest.NewServer(form(s, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", strings.Repeat("x", 40<<10))
			w.WriteHeader(201)
		}, nil))
		defer server.Close()
		s.url = server.URL
		first, second := s.send("k", "1"), s.send("k", "1")
		if name == "HandlerTx" {
			s.wantProblem(first, 500, "rolled-back")
			s.wantProblem(second, 500, "rolled-back")
			continue
		}
		if first.status != 201 {
			t.Errorf("%+v", first)
		}
		s.wantProblem(second, 410, "answer-not-kept")
		s.wantRuns(1)
	}
}

// TestInvalidOptionsPanic: invalid options panic when the guard is created, not
// at its first request.
func TestInvalidOptionsPanic(t *testing.T) {
	lookup := func(context.Context, once.Key) (*httponce.Response, bool, error) { return nil, false, nil }
	for name, o := range map[string]*httponce.Options{
		"lease":           {Policy: once.Policy{Lease: time.Millisecond}},
		"slash":           {Operation: "a/b"},
		"long operation":  {Operation: strings.Repeat("x", 300)},
		"two choices":     {Lookup: lookup, OnUnknown: once.Resend},
		"no choice":       {OnUnknown: 7},
		"set-cookie":      {Headers: []string{"set-cookie"}},
		"of the format":   {Headers: []string{"Once-Body-Not-Kept"}},
		"no header":       {Headers: []string{"a b"}},
		"negative body":   {MaxBody: -1},
		"negative answer": {MaxResponse: -1},
	} {
		for form, guard := range forms {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s, %s: it was taken", form, name)
					}
				}()
				guard(&service{store: memstore.New(nil)}, created, o)
			}()
		}
	}
}

// TestLogsContainNoSecrets takes every path that logs something.
func TestLogsContainNoSecrets(t *testing.T) {
	var logged bytes.Buffer
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return logged.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	const secret = "s3cr3t"
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/"+secret)
		w.Header().Set("Set-Cookie", secret)
		switch mode := r.Header.Get("Mode"); mode {
		case "500":
			w.WriteHeader(500)
		case "panic":
			panic(http.ErrAbortHandler)
		case "large":
			fmt.Fprint(w, strings.Repeat(secret, 100_000))
			return
		case "header":
			w.Header().Set("Location", "/"+secret+"\r\n")
		}
		fmt.Fprint(w, secret)
	}
	for name, form := range forms {
		for _, down := range []bool{false, true} {
			s := &service{t: t, store: memstore.New(&memstore.Options{Options: once.Options{Logger: logger, MaxOutcome: 20 << 10}})}
			guarded := form(s, handler, nil)
			if down && name == "Handler" {
				store := &faulty{Store: s.store, before: failing("settle", 1<<30, once.ErrClosed)}
				guarded = httponce.Handler(store, tenant, s.counted(http.HandlerFunc(handler)), nil)
			}
			server := httptest.NewServer(guarded)
			s.url = server.URL
			for _, mode := range []string{"", "500", "panic", "large", "header"} {
				for _, change := range []string{secret, secret + " changed"} {
					r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/p?token="+secret, strings.NewReader(change))
					r.Header = http.Header{"Tenant": {"acme"}, httponce.KeyHeader: {"key-" + name + mode}, "Authorization": {secret}, "Mode": {mode}}
					if resp, err := http.DefaultClient.Do(r); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
			}
			server.Close()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if text := logged.String(); strings.Contains(text, secret) || !strings.Contains(text, "key-Handler") {
		t.Errorf("logged:\n%s", text)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestTheOpenLimitHoldsInARace races for the only place of a caller.
func TestTheOpenLimitHoldsInARace(t *testing.T) {
	var open, limit atomic.Int64
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		limit.Store(max(limit.Load(), open.Add(1)))
		created(w, r)
		open.Add(-1)
	}, &httponce.Options{Limits: httponce.Limits{Open: 1}}, func(t *testing.T, s *service) {
		var all sync.WaitGroup
		var done atomic.Int64
		for i := range 64 {
			all.Add(1)
			go func() {
				defer all.Done()
				switch a := s.send(fmt.Sprint("k", i), "1"); {
				case a.status == 201:
					done.Add(1)
				case a.problem() != "too-many-requests" || a.header.Get("Retry-After") == "":
					t.Errorf("got %+v", a)
				}
			}()
		}
		all.Wait()
		s.wantRuns(done.Load())
		if limit.Load() > 1 || done.Load() == 0 {
			t.Errorf("%d at once, %d done", limit.Load(), done.Load())
		}
		if a := s.send("after-all", "1"); a.status != 201 {
			t.Errorf("a place was not given back: %+v", a)
		}
	})
}
