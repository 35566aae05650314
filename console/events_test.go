//go:build go1.25

package console

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// wire is a connection to a browser that gets events.
type wire struct {
	header http.Header

	mu       sync.Mutex
	status   int
	text     bytes.Buffer
	flushed  int // bytes
	deadline time.Time
	stalls   bool // the browser reads no more
	closed   chan struct{}
	leave    context.CancelFunc
}

func (w *wire) Header() http.Header { return w.header }

func (w *wire) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stalls {
		if w.deadline.IsZero() {
			panic("a stalled reader would be waited for for ever")
		}
		time.Sleep(time.Until(w.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	return w.text.Write(p)
}

func (w *wire) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushed = w.text.Len()
}

func (w *wire) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	return nil
}

func (w *wire) SetReadDeadline(time.Time) error { return nil }

// read returns what has arrived so far.
func (w *wire) read() (status int, text string) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status, string(w.text.Bytes()[:w.flushed])
}

func (w *wire) isClosed() bool {
	synctest.Wait()
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

// opens opens a stream of events as a page of the browser does.
func (b *browser) opens(path string, prepare ...func(*wire)) *wire {
	b.t.Helper()
	ctx, leave := context.WithCancel(b.t.Context())
	w := &wire{header: make(http.Header), closed: make(chan struct{}), leave: leave}
	for _, change := range prepare {
		change(w)
	}
	r := httptest.NewRequest(http.MethodGet, "http://localhost:9470"+path, nil).WithContext(ctx)
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	go func() {
		defer close(w.closed)
		b.to.ServeHTTP(w, r)
	}()
	b.t.Cleanup(func() { leave(); <-w.closed })
	return w
}

// counting counts how often a store is asked for its lists.
type counting struct {
	*memstore.Store
	lists atomic.Int64
}

func (s *counting) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	s.lists.Add(1)
	return s.Store.List(ctx, q)
}

const overviewEvents = "/events?of=overview"

// All who look at the overview are told of what is new, and the store is asked no
// more often than for one of them.
func TestEventsFollowTheOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Store: memstore.New(nil)}
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
		var all []*wire
		for _, token := range []string{lookToken, decideToken, adminToken} {
			b := as(t, c, token)
			for range 3 {
				all = append(all, b.opens(overviewEvents))
			}
		}
		for _, w := range all {
			if status, text := w.read(); status != http.StatusOK || w.header.Get("Content-Type") != "text/event-stream" || w.header.Get("X-Accel-Buffering") != "no" ||
				strings.Count(text, "event: part\ndata: ") != 1 || !strings.Contains(text, "data: <div data-part") || !strings.Contains(text, "Unknown keys") || strings.Contains(text, "<body") {
				t.Fatalf("%d %v %s", status, w.header, text)
			}
		}
		unknown(t, s.Store, once.Key{Operation: "pay", ID: "1"})
		before := s.lists.Load()
		time.Sleep(time.Minute)
		for _, w := range all {
			if _, text := w.read(); !strings.Contains(text[strings.LastIndex(text, "event: part"):], "Something needs a person") ||
				!strings.Contains(text, `<span class="visually-hidden">: 1</span>`) { // in the navigation
				t.Errorf("the news is missing: %s", text)
			}
		}
		if n := s.lists.Load() - before; n > 4*7 { // two lists in ten seconds, and up to two to learn names from
			t.Errorf("%d streams list keys %d times in a minute", len(all), n)
		}
		for _, w := range all {
			w.leave()
			if !w.isClosed() {
				t.Error("a stream goes on without its browser")
			}
		}
		if c.streams.all != 0 || len(c.streams.of) != 0 {
			t.Errorf("the places are not free: %d, %v", c.streams.all, c.streams.of)
		}
	})
}

// A stream ends with the sign-in, and does not keep it.
func TestEventsEndWithTheSignIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{})
		b := as(t, c, lookToken)
		w := b.opens(overviewEvents)
		if w.isClosed() {
			t.Fatal("it is closed at once")
		}
		b.get("/audit").fill("/sign-out")
		time.Sleep(2 * streamTick)
		if !w.isClosed() {
			t.Error("it goes on after the sign-out")
		}

		b = as(t, c, lookToken)
		begun := time.Now()
		for {
			w := b.opens(overviewEvents)
			if status, _ := w.read(); status == http.StatusUnauthorized {
				break
			}
			for !w.isClosed() {
				time.Sleep(time.Second)
			}
			r := httptest.NewRequest(http.MethodGet, "http://localhost:9470/", nil)
			r.Header.Set(refreshing, "1") // as a page without events reads itself again
			b.do(r)
		}
		if took := time.Since(begun); took < 29*time.Minute || took > 31*time.Minute {
			t.Errorf("the sign-in ended after %v", took)
		}
	})
}

// Streams are bounded, for a person and in all, and whoever gets none gets a page
// that says so.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var many []Person
		for i := range 20 {
			many = append(many, Person{Name: string(rune('a' + i)), Role: Look, Token: strings.Repeat(string(rune('a'+i)), 20)})
		}
		c := open(t, Options{People: many})
		first := as(t, c, many[0].Token)
		var of []*wire
		for range maxStreamsOf {
			of = append(of, first.opens(overviewEvents))
			synctest.Wait()
		}
		if status, _ := first.opens(overviewEvents).read(); status != http.StatusTooManyRequests {
			t.Errorf("one more of a person has the status %d", status)
		}
		of[0].leave()
		of[0].isClosed()
		if status, _ := first.opens(overviewEvents).read(); status != http.StatusOK {
			t.Errorf("a place that is free again: %d", status)
		}
		open := maxStreamsOf
		for _, p := range many[1:] {
			b := as(t, c, p.Token)
			for range maxStreamsOf {
				if status, _ := b.opens(overviewEvents).read(); status == http.StatusOK {
					open++
				}
			}
		}
		if open != maxStreams {
			t.Errorf("%d streams are open, want %d", open, maxStreams)
		}
	})
}

// A browser that reads no more is given up, with its place. Silence is interrupted,
// so that proxies keep the connection, and each stream is checked anew in the end.
func TestEventsGiveUpAReaderThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{})
		b := as(t, c, lookToken)
		stalled := b.opens(overviewEvents, func(w *wire) { w.stalls = true })
		time.Sleep(streamWrite + time.Second)
		if !stalled.isClosed() || c.streams.all != 0 {
			t.Errorf("it keeps its place: %d", c.streams.all)
		}
		c.Close() // then the overview does not change
		c.closing = nil
		quiet := b.opens(overviewEvents)
		time.Sleep(time.Minute)
		if _, text := quiet.read(); strings.Count(text, "\n:\n") < 3 {
			t.Errorf("it is silent: %q", text[max(0, len(text)-200):])
		}
		time.Sleep(streamTime)
		if !quiet.isClosed() {
			t.Error("it is never checked again")
		}
	})
}

// Close ends streams, and there are no new ones after it.
func TestEventsEndWithTheConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{})
		b := as(t, c, lookToken)
		w := b.opens(overviewEvents)
		w.read()
		c.Close()
		if !w.isClosed() {
			t.Error("it goes on")
		}
		if status, _ := b.opens(overviewEvents).read(); status != http.StatusServiceUnavailable {
			t.Errorf("a new one has the status %d", status)
		}
	})
}

// plainWriter hides what a ResponseWriter can do besides.
type plainWriter struct{ http.ResponseWriter }

// wrapped says what it wraps.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Where events cannot be sent at once, or a stalled reader could not be given up, the
// page is told, and reads itself again.
func TestEventsNeedAWayToTheBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{Path: "/admin"})
		b := visit(t, http.StripPrefix("/admin", c)).get("/admin/").fill("/admin/sign-in", "token", lookToken).is(http.StatusOK)
		through := func(wrap func(http.ResponseWriter) http.ResponseWriter) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.StripPrefix("/admin", c).ServeHTTP(wrap(w), r) })
		}
		for name, test := range map[string]struct {
			wrap func(http.ResponseWriter) http.ResponseWriter
			want int
		}{
			"StripPrefix alone":       {func(w http.ResponseWriter) http.ResponseWriter { return w }, http.StatusOK},
			"a wrapper that unwraps":  {func(w http.ResponseWriter) http.ResponseWriter { return wrapped{wrapped{w}} }, http.StatusOK},
			"a wrapper that does not": {func(w http.ResponseWriter) http.ResponseWriter { return plainWriter{w} }, http.StatusNotImplemented},
			"no deadline": {func(w http.ResponseWriter) http.ResponseWriter {
				return struct {
					plainWriter
					http.Flusher
				}{plainWriter{w}, w.(http.Flusher)}
			}, http.StatusNotImplemented},
		} {
			b.to = through(test.wrap)
			w := b.opens("/admin" + overviewEvents)
			if synctest.Wait(); w.status != test.want {
				t.Errorf("%s: status %d, want %d", name, w.status, test.want)
			}
			w.leave()
		}
		b.to = http.StripPrefix("/admin", c)
		for path, want := range map[string]int{"/admin/events": http.StatusNotFound, "/admin/events?of=job&number=7": http.StatusNotFound} {
			if w := b.opens(path); !w.isClosed() || w.status != want {
				t.Errorf("%s: %d", path, w.status)
			}
		}
	})
}

// A page about questions is told of each answer, and of the end.
func TestEventsEndWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, bank, c, _ := branch(t, Options{}, "1", "2", "3")
		bank.meet = func(string) { time.Sleep(5 * time.Second) }
		b := as(t, c, decideToken)
		b.get("/unknown").fill("/ask", "rate", "0.1").is(http.StatusOK)
		if !strings.Contains(b.text, `data-live="/events?from=0&amp;number=1&amp;of=ask"`) {
			t.Errorf("the page has no events: %s", b.text)
		}
		w := b.opens("/events?of=ask&number=1")
		time.Sleep(17 * time.Second)
		if _, text := w.read(); !strings.Contains(text, "2 of 3 asked about") || strings.Contains(text, "event: end") {
			t.Errorf("after two answers: %s", text)
		}
		time.Sleep(20 * time.Second)
		if _, text := w.read(); !strings.Contains(text, "3 of 3 asked about") || !strings.HasSuffix(text, "event: end\ndata:\n\n") || !w.isClosed() {
			t.Errorf("at the end: %s", text)
		}
		if b.get("/ask?number=1"); strings.Contains(b.text, "data-live") {
			t.Error("a page that is over has events")
		}
	})
}

// slowList is a store that takes its time to list the records of an operation.
type slowList struct{ *memstore.Store }

func (s slowList) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if q.Operation != "" {
		time.Sleep(5 * time.Second)
	}
	return s.Store.List(ctx, q)
}

// A page about a comparison shows the result by itself when there is one.
func TestEventsShowWhatAComparisonFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: slowList{memstore.New(nil)}}}}), decideToken)
		b.send("charges.csv", "id\norder-1\n", "operation", "pay").is(http.StatusOK)
		if !strings.Contains(b.text, `data-live="/events?number=1&amp;of=comparison"`) {
			t.Errorf("the page has no events: %s", b.text)
		}
		w := b.opens("/events?of=comparison&number=1")
		time.Sleep(2 * time.Second)
		if _, text := w.read(); !strings.Contains(text, "Reading the keys of pay, to compare 1 line with them") || strings.Contains(text, "event: end") {
			t.Errorf("at work: %s", text)
		}
		time.Sleep(10 * time.Second)
		if _, text := w.read(); !strings.Contains(text, "not_here") || !strings.Contains(text, "order-1") || !strings.HasSuffix(text, "event: end\ndata:\n\n") || !w.isClosed() {
			t.Errorf("at the end: %s", text)
		}
		if b.get("/reconcile/result?number=1"); strings.Contains(b.text, "data-live") {
			t.Error("a page that is over has events")
		}
		if w := b.opens("/events?of=comparison&number=2"); !w.isClosed() || w.status != http.StatusNotFound {
			t.Errorf("a comparison that there is not: %d", w.status)
		}
	})
}

// A connection that had events, or was refused them, carries no other request: it
// would have the deadline of the events.
func TestEventsUseUpTheirConnection(t *testing.T) {
	c := open(t, Options{})
	b := as(t, c, lookToken)
	server := httptest.NewServer(c)
	defer server.Close()
	for path, want := range map[string]int{"/events": http.StatusNotFound, overviewEvents: http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "localhost:9470" // the name of the cookie has the port
		r.AddCookie(b.cookies[cookieHere])
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != want || !answer.Close {
			t.Errorf("%s: status %d, and the connection is kept", path, answer.StatusCode)
		}
		answer.Body.Close()
	}
}

// What a stream sends is one event, whatever is in it.
func TestEventsKeepTheirLines(t *testing.T) {
	if got := string(serverSent("part", []byte("a\r\nb\rdata: c\n\nevent: x"))); got != "event: part\ndata: a\ndata: b\ndata: data: c\ndata: \ndata: event: x\n\n" {
		t.Errorf("%q", got)
	}
}
