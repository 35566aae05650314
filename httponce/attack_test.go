package httponce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// TestLateReader reads the body of a request after its handler has returned, as a goroutine that a TimeoutHandler left
// behind does. It must not find the body of somebody else's request there.
func TestLateReader(t *testing.T) {
	bodies := make(chan io.Reader, 1)
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case bodies <- r.Body:
		default:
		}
		_, _ = fmt.Fprint(w, "ok")
	}, nil, func(t *testing.T, s *service) {
		for i := range 20 {
			s.send(fmt.Sprint("first", i), strings.Repeat("mine ", 20))
			late := <-bodies
			bodies <- nil
			s.send(fmt.Sprint("second", i), strings.Repeat("hers ", 20), func(r *http.Request) { r.Header.Set("Tenant", "other") })
			<-bodies
			if b, err := io.ReadAll(late); !errors.Is(err, http.ErrBodyReadAfterClose) || len(b) > 0 {
				t.Fatalf("a late reader got %q, %v", b, err)
			}
		}
	})
}

// TestLateReaderOfALimitedBody is TestLateReader for a handler that has put a body of its own in the place of the one that
// it was given, as it does to limit it.
func TestLateReaderOfALimitedBody(t *testing.T) {
	bodies := make(chan io.Reader, 1)
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<10)
		bodies <- r.Body
	}, nil, func(t *testing.T, s *service) {
		s.send("k", "mine")
		if b, err := io.ReadAll(<-bodies); !errors.Is(err, http.ErrBodyReadAfterClose) || len(b) > 0 {
			t.Fatalf("a late reader got %q, %v", b, err)
		}
	})
}

// TestLateReaderWhileReading is TestLateReader for the race detector: the reader does not wait for the handler's end.
func TestLateReaderWhileReading(t *testing.T) {
	var readers sync.WaitGroup
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		readers.Add(1)
		go func(body io.Reader) {
			defer readers.Done()
			if b, _ := io.ReadAll(body); strings.Trim(string(b), string(b[:min(1, len(b))])) != "" {
				t.Errorf("two bodies in one: %q", b)
			}
		}(r.Body)
	}, nil, func(t *testing.T, s *service) {
		var senders sync.WaitGroup
		for i := range 8 {
			senders.Add(1)
			go func() {
				defer senders.Done()
				for j := range 20 {
					s.send(fmt.Sprint(i, "-", j), strings.Repeat(string(rune('a'+i)), 3000))
				}
			}()
		}
		senders.Wait()
		readers.Wait()
	})
}

// TestLateWriter writes after the handler has returned. What it writes belongs to nobody else's response.
func TestLateWriter(t *testing.T) {
	var writers sync.WaitGroup
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		name := r.Header.Get(httponce.KeyHeader)[:1]
		_, _ = io.WriteString(w, name)
		started := make(chan struct{})
		writers.Add(1)
		go func() {
			defer writers.Done()
			begin := sync.OnceFunc(func() { close(started) })
			for begun := time.Now(); time.Since(begun) < time.Minute; begin() {
				if _, err := io.WriteString(w, name); err != nil {
					return
				}
			}
			t.Error("it may write for ever")
		}()
		<-started
	}, nil, func(t *testing.T, s *service) {
		var senders sync.WaitGroup
		for i := range 8 {
			senders.Add(1)
			go func() {
				defer senders.Done()
				name := string(rune('a' + i))
				for j := range 20 {
					first := s.send(fmt.Sprint(name, j), "")
					if again := s.send(fmt.Sprint(name, j), ""); first.status != 200 || strings.Trim(first.body, name) != "" || again.status == 200 && again.body != first.body {
						t.Errorf("%s got %.50q, and again %d %.50q", name, first.body, again.status, again.body)
					}
				}
			}()
		}
		senders.Wait()
		writers.Wait()
	})
}

// TestDeadlineOutside has middleware that ends the context of the request while a repeat waits. The client is still there:
// silence would be 200 OK.
func TestDeadlineOutside(t *testing.T) {
	running, finish := make(chan struct{}), make(chan struct{})
	s := &service{t: t, store: memstore.New(nil)}
	guarded := forms["Handler"](s, func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-finish
		created(w, r)
	}, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		defer cancel()
		guarded.ServeHTTP(w, r.WithContext(ctx))
	}))
	defer server.Close()
	s.url = server.URL
	first := make(chan answer, 1)
	go func() { first <- s.send("k", "1") }()
	<-running
	again := s.send("k", "1")
	close(finish)
	if again.status != 409 || again.problem() != "in-progress" || again.header.Get("Retry-After") == "" {
		t.Errorf("the repeat got %+v", again)
	}
	if a := <-first; a.status != 201 {
		t.Errorf("the first got %+v", a)
	}
	s.wantRuns(1)
}

// TestDeadlineBeforeClaim has a context that is over when the request arrives.
func TestDeadlineBeforeClaim(t *testing.T) {
	for name, form := range forms {
		for _, open := range []bool{false, true} {
			if open && name == "HandlerTx" {
				continue
			}
			s := &service{t: t, store: memstore.New(nil)}
			guarded := form(s, created, &httponce.Options{FailOpen: open})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithCancel(r.Context())
				cancel()
				guarded.ServeHTTP(w, r.WithContext(ctx))
			}))
			s.url = server.URL
			s.wantProblem(s.send("k", "1"), 503, "unavailable")
			s.wantRuns(0)
			server.Close()
		}
	}
}

// TestBodyReadBefore has a Caller that parses the form. What the guard would compare is gone then: another form under the same
// key would get the answer of the first.
func TestBodyReadBefore(t *testing.T) {
	for name, read := range map[string]func(*http.Request){
		"form":      func(r *http.Request) { r.FormValue("account") },
		"multipart": func(r *http.Request) { r.FormValue("account") },
		"all":       func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
	} {
		s := &service{t: t, store: memstore.New(nil)}
		caller := func(r *http.Request) (string, error) {
			read(r)
			return tenant(r)
		}
		server := httptest.NewServer(httponce.Handler(s.store, caller, s.counted(http.HandlerFunc(created)), nil))
		defer server.Close()
		s.url = server.URL
		for _, amount := range []string{"10", "20"} {
			body, contentType := "account=a&amount="+amount, "application/x-www-form-urlencoded"
			if name == "multipart" {
				body, contentType = "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n"+amount+"\r\n--b--\r\n", "multipart/form-data; boundary=b"
			}
			a := s.send("k", body, func(r *http.Request) { r.Header.Set("Content-Type", contentType) })
			if a.replayed() {
				t.Errorf("%s: another request got the first one's answer: %+v", name, a)
			}
			s.wantProblem(a, 500, "body-not-whole")
		}
		s.wantRuns(0)
	}
}

// TestUploadedFilesAreRemoved: net/http removes the temporary files of the request that it knows.
func TestUploadedFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("f", "x")
	_, _ = io.WriteString(part, strings.Repeat("x", 10_000))
	form.Close()
	onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil { // so that the file goes to the disk
			t.Error(err)
		}
		if found, _ := os.ReadDir(dir); len(found) != 1 {
			t.Errorf("%d files while running", len(found))
		}
	}, nil, func(t *testing.T, s *service) {
		s.send("k", body.String(), func(r *http.Request) { r.Header.Set("Content-Type", form.FormDataContentType()) })
		s.eventually("the files are removed", func() bool {
			found, err := os.ReadDir(dir)
			return err == nil && len(found) == 0
		})
	})
}

func (s *service) eventually(what string, is func() bool) {
	s.t.Helper()
	end, tick := time.After(testenv.Patience), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-end:
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

// TestRejectedAnswer has a record that holds a business no: found by a Lookup, or left by HandlerTx before its route was changed.
func TestRejectedAnswer(t *testing.T) {
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

// TestFailedInTx has errors of the handler that mean something to once. For the client, it failed and was rolled back.
func TestFailedInTx(t *testing.T) {
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

// TestLargeHeader records a header that the store has no room for. It is not the store's fault, and no reason to come again.
func TestLargeHeader(t *testing.T) {
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

// TestOptionsThatMakeNoSense panic when the program starts, not at its first request.
func TestOptionsThatMakeNoSense(t *testing.T) {
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

// TestNothingSecretInLogs goes the ways on which something is logged.
func TestNothingSecretInLogs(t *testing.T) {
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

// TestOpenLimit races for the one place that a caller has.
func TestOpenLimit(t *testing.T) {
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
