package httponce

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/store/memstore"
)

// halfSent is a request whose body ends when its writer is closed.
func halfSent(t *testing.T, key string) (r *http.Request, rest *io.PipeWriter) {
	t.Helper()
	body, rest := io.Pipe()
	t.Cleanup(func() { _ = rest.Close() })
	r = httptest.NewRequest(http.MethodPost, "/", body)
	r.Header.Set(KeyHeader, key)
	r.ContentLength = 1
	return r, rest
}

// serve starts a request, and returns where its answer will be.
func serve(h http.Handler, r *http.Request) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		answer <- w
	}()
	return answer
}

func whole(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	r.Header.Set(KeyHeader, key)
	return r
}

// TestANewKeyOfARepeatIsCounted: a new key takes from the rate whichever of its
// requests runs the handler. Otherwise a caller could have as many new keys as
// it likes, with a slow request before each.
func TestANewKeyOfARepeatIsCounted(t *testing.T) {
	guarded := Handler(memstore.New(nil), anyone, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		&Options{Limits: Limits{PerSecond: 1e-6, Burst: 1}})
	slow, rest := halfSent(t, "a")
	first := serve(guarded, slow)
	_, _ = rest.Write([]byte("x")) // returns once the first is counted, and reads

	if w := <-serve(guarded, whole("a")); w.Code != http.StatusOK || w.Header().Get(ReplayedHeader) != "" {
		t.Fatalf("the second got %d %s", w.Code, w.Body)
	}
	_ = rest.Close()
	if w := <-first; w.Code != http.StatusOK || w.Header().Get(ReplayedHeader) == "" {
		t.Fatalf("the first got %d %s", w.Code, w.Body)
	}
	if w := <-serve(guarded, whole("b")); w.Code != http.StatusTooManyRequests {
		t.Errorf("a second new key got %d", w.Code)
	}
}

// TestRequestsOfACallerOverItsLimitsAreCounted: a caller over its limits holds
// no more bodies than others, whatever the store knows of the keys.
func TestRequestsOfACallerOverItsLimitsAreCounted(t *testing.T) {
	const waiting = 2
	guarded := Handler(memstore.New(nil), anyone, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		&Options{Limits: Limits{Open: 1, Waiting: waiting}})
	if w := <-serve(guarded, whole("done")); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	var answers []<-chan *httptest.ResponseRecorder
	var rests []*io.PipeWriter
	for _, key := range append([]string{"open"}, slices.Repeat([]string{"done"}, waiting)...) {
		slow, rest := halfSent(t, key)
		answers, rests = append(answers, serve(guarded, slow)), append(rests, rest)
		_, _ = rest.Write([]byte("x"))
	}
	extra, rest := halfSent(t, "done")
	tooMany := serve(guarded, extra)
	go func() { // in vain, unless it is read
		_, _ = rest.Write([]byte("x"))
		_ = rest.Close()
	}()
	if w := <-tooMany; w.Code != http.StatusConflict || w.Header().Get("Retry-After") == "" {
		t.Errorf("one too many got %d %s", w.Code, w.Body)
	}
	for i, answer := range answers {
		_ = rests[i].Close()
		if w := <-answer; w.Code != http.StatusOK {
			t.Errorf("request %d got %d %s", i, w.Code, w.Body)
		}
	}
	if s := guarded.(*guard).limiter.callers["anyone"]; s.waiting != 0 || len(s.open) != 0 {
		t.Errorf("%+v is counted in the end", s)
	}
}

// TestTheLimiterCountsWhoeverIsLetIn: every request that is let in is counted,
// and callers without requests are forgotten in the end.
func TestTheLimiterCountsWhoeverIsLetIn(t *testing.T) {
	l := newLimiter(Limits{Open: 10, PerSecond: 3, Burst: 1})
	now := time.Unix(0, 0)
	for i := range 1000 {
		caller := fmt.Sprint(i)
		a, wait := l.enter(caller, "a", now)
		if wait != 0 {
			t.Fatalf("the first has to wait %v", wait)
		}
		a.leave(false)
		// A third of a second, less half a nanosecond: not yet a whole new token.
		if b, wait := l.enter(caller, "b", now.Add(333_333_333)); wait == 0 {
			b.leave(false)
		}
		if open := l.callers[caller].open; len(open) != 0 {
			t.Fatalf("%v are open", open)
		}
		if _, wait := l.enter(caller, "c", now.Add(333_333_333)); wait == 0 {
			t.Fatal("it was let in, and nothing was counted")
		}
	}
	l.enter("last", "a", now.Add(time.Hour))
	if len(l.callers) != 1 {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
}
