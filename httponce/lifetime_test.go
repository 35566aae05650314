package httponce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// TestAReaderAfterTheHandlerGetsNoOtherBody reads the body of a request after
// its handler has returned, like a goroutine that a TimeoutHandler has
// abandoned. It must not read the body of another request.
func TestAReaderAfterTheHandlerGetsNoOtherBody(t *testing.T) {
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

// TestAReaderOfALimitedBodyAfterTheHandlerGetsNoOtherBody has a handler that
// has replaced its body by a limited one.
func TestAReaderOfALimitedBodyAfterTheHandlerGetsNoOtherBody(t *testing.T) {
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

// TestAReaderThatOutlivesTheHandlerGetsNoOtherBody reads while the handler
// returns, for the race detector.
func TestAReaderThatOutlivesTheHandlerGetsNoOtherBody(t *testing.T) {
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

// TestAWriterThatOutlivesTheHandlerReachesNoOtherResponse writes after the
// handler has returned. The text must not get into the response to another
// request.
func TestAWriterThatOutlivesTheHandlerReachesNoOtherResponse(t *testing.T) {
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

// TestAWriterThatOutlivesTheHandlerDoesNotWaitForTheClient writes after the
// handler has returned, while the response is sent to a client that does not
// read.
func TestAWriterThatOutlivesTheHandlerDoesNotWaitForTheClient(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, store: memstore.New(nil)}
			var late http.ResponseWriter
			guarded := form(s, func(w http.ResponseWriter, _ *http.Request) {
				late = w
				_, _ = io.WriteString(w, "ok")
			}, nil)
			client := &stuckClient{ResponseRecorder: httptest.NewRecorder(), sending: make(chan struct{}), read: make(chan struct{})}
			served := make(chan struct{})
			go func() {
				defer close(served)
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Header.Set("Tenant", "acme")
				r.Header.Set(httponce.KeyHeader, "k")
				guarded.ServeHTTP(client, r)
			}()
			<-client.sending
			errs := make(chan error, 3)
			go func() {
				late.WriteHeader(http.StatusTeapot)
				_, err := io.WriteString(late, "late")
				errs <- err
				control := http.NewResponseController(late)
				errs <- control.Flush()
				_, _, err = control.Hijack()
				errs <- err
			}()
			for range cap(errs) {
				select {
				case err := <-errs:
					if err == nil {
						t.Error("a late call has no error")
					}
				case <-time.After(testenv.Patience):
					t.Fatal("a late call waits for the client")
				}
			}
			close(client.read)
			<-served
			if client.Code != http.StatusOK || client.Body.String() != "ok" {
				t.Errorf("the client got %d %q", client.Code, client.Body)
			}
		})
	}
}

// stuckClient is the ResponseWriter of a client that reads no body until read is
// closed.
type stuckClient struct {
	*httptest.ResponseRecorder
	sending, read chan struct{}
}

func (c *stuckClient) Write(p []byte) (int, error) {
	close(c.sending)
	<-c.read
	return c.ResponseRecorder.Write(p)
}

// TestARepeatWhoseContextEndsIsAnswered has middleware that ends the context of
// a waiting repeat. The client is still connected, and no response would be a
// 200.
func TestARepeatWhoseContextEndsIsAnswered(t *testing.T) {
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

// TestARequestWhoseContextIsOverRunsNothing has a context that has ended before
// the request arrives.
func TestARequestWhoseContextIsOverRunsNothing(t *testing.T) {
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

// TestAFormThatWasParsedBeforeIsRefused has a Caller that parses the form and
// so consumes the body. Otherwise another form under the same key would get the
// response to the first.
func TestAFormThatWasParsedBeforeIsRefused(t *testing.T) {
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

// TestUploadedFilesAreRemoved: the guard removes temporary files, because
// net/http removes only those of its own request.
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
