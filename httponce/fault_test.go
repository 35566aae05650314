package httponce_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// faulty is a store whose calls a test can make fail. An error of before is
// returned instead of making the call. An error of after replaces the reply of
// a call that was made.
type faulty struct {
	*memstore.Store
	before, after func(call string) error
	time          time.Duration // that a request has; 0: as much as it takes
}

func (f *faulty) around(call string, do func() error) error {
	if f.before != nil {
		if err := f.before(call); err != nil {
			return err
		}
	}
	if err := do(); err != nil || f.after == nil {
		return err
	}
	return f.after(call)
}

func (f *faulty) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = f.around("claim", func() (err error) { rec, err = f.Store.Claim(ctx, r); return err })
	return rec, err
}

func (f *faulty) Settle(ctx context.Context, set once.Settlement) error {
	return f.around("settle", func() error { return f.Store.Settle(ctx, set) })
}

func (f *faulty) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return f.around("extend", func() error { return f.Store.Extend(ctx, fence, d) })
}

func (f *faulty) Transact(ctx context.Context, rs []once.ClaimRequest, body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {
	err = f.around("transact", func() (err error) { recs, err = f.Store.Transact(ctx, rs, body); return err })
	return recs, err
}

// failing fails the first n of the calls with this name.
func failing(name string, n int64, err error) func(string) error {
	var seen atomic.Int64
	return func(call string) error {
		if call == name && seen.Add(1) <= n {
			return err
		}
		return nil
	}
}

// serveWith serves a handler guarded with a faulty store.
func serveWith(t *testing.T, f *faulty, form string, h http.HandlerFunc, o *httponce.Options) *service {
	f.Store = memstore.New(nil)
	s := &service{t: t, store: f.Store}
	guarded := httponce.Handler(f, tenant, s.counted(h), o)
	if form == "HandlerTx" {
		guarded = httponce.HandlerTx(f, tenant, func(w http.ResponseWriter, r *http.Request, _ *memstore.Tx) error {
			s.counted(h).ServeHTTP(w, r)
			return nil
		}, o)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.time > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), f.time)
			defer cancel()
			r = r.WithContext(ctx)
		}
		guarded.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// TestALostCallOfTheStoreRunsNothingTwice loses calls of the store and replies
// of calls, once or from then on.
func TestALostCallOfTheStoreRunsNothingTwice(t *testing.T) {
	const always = 1 << 30
	const ran, notRun = 1, 0
	down, closed := errors.New("connection refused"), fmt.Errorf("the test: %w", once.ErrClosed)
	unknown := fmt.Errorf("lost at commit: %w", once.ErrOutcomeUnknown)
	for name, test := range map[string]struct {
		form          string
		before, after func(string) error
		time          time.Duration
		status        int
		problem       string
		runs          int64
		again         int // status of the repeat when the store is well again
		againProblem  string
		totalRuns     int64
	}{
		"claim fails once":                  {form: "Handler", before: failing("claim", 1, down), status: 201, runs: ran, again: 201, totalRuns: 1},
		"reply to the claim lost":           {form: "Handler", after: failing("claim", 1, down), status: 201, runs: ran, again: 201, totalRuns: 1},
		"claim fails":                       {form: "Handler", before: failing("claim", always, down), status: 503, problem: "unavailable", runs: notRun, again: 201, totalRuns: 1},
		"all replies to claims lost":        {form: "Handler", after: failing("claim", 4, down), status: 503, problem: "unavailable", runs: notRun, again: 201, totalRuns: 1},
		"settle fails once":                 {form: "Handler", before: failing("settle", 1, down), status: 201, runs: ran, again: 201, totalRuns: 1},
		"reply to settle lost":              {form: "Handler", after: failing("settle", 1, down), status: 201, runs: ran, again: 201, totalRuns: 1},
		"settle fails":                      {form: "Handler", before: failing("settle", always, closed), status: 201, runs: ran, again: 409, againProblem: "in-progress", totalRuns: 1},
		"all replies to settle lost":        {form: "Handler", after: failing("settle", always, closed), status: 201, runs: ran, again: 201, totalRuns: 1},
		"lease lost at settle":              {form: "Handler", before: failing("settle", always, once.ErrLeaseLost), status: 409, problem: "outcome-unknown", runs: ran, again: 409, againProblem: "in-progress", totalRuns: 1},
		"transaction fails once":            {form: "HandlerTx", before: failing("transact", 1, down), status: 201, runs: ran, again: 201, totalRuns: 1},
		"transaction fails":                 {form: "HandlerTx", before: failing("transact", always, down), status: 503, problem: "unavailable", runs: notRun, again: 201, totalRuns: 1},
		"reply to commit lost":              {form: "HandlerTx", after: failing("transact", 1, unknown), status: 201, runs: ran, again: 201, totalRuns: 1},
		"all replies to commits lost":       {form: "HandlerTx", after: failing("transact", always, unknown), status: 409, problem: "outcome-unknown", runs: ran, again: 201, totalRuns: 1},
		"conflicts until it is given up":    {form: "HandlerTx", before: failing("transact", always, once.ErrConflict), time: time.Second, status: 503, problem: "unavailable", runs: notRun, again: 201, totalRuns: 1},
		"rolled back, and the store closed": {form: "HandlerTx", before: failing("transact", always, closed), status: 503, problem: "unavailable", runs: notRun, again: 201, totalRuns: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{before: test.before, after: test.after, time: test.time}
			s := serveWith(t, f, test.form, created, &httponce.Options{Policy: once.Policy{Wait: once.NoWait}})
			a := s.send("k", "1")
			if a.status != test.status || a.problem() != test.problem || a.replayed() {
				t.Errorf("the first got %+v", a)
			}
			if after := a.header.Get("Retry-After"); (test.problem != "") != (after != "") {
				t.Errorf("Retry-After: %q", after)
			}
			s.wantRuns(test.runs)
			f.before, f.after = nil, nil
			if a := s.send("k", "1"); a.status != test.again || a.problem() != test.againProblem || a.status == 201 && test.runs == ran && !a.replayed() {
				t.Errorf("the repeat got %+v", a)
			}
			s.wantRuns(test.totalRuns)
		})
	}
}

// TestAHandlerMayOutliveItsLease has a handler that cannot extend its lease and
// finishes late. Its context ends with the lease. If no other request has taken
// the key, its response is recorded. If another has run, its response is not
// sent, unless a part was sent before.
func TestAHandlerMayOutliveItsLease(t *testing.T) {
	for _, test := range []struct {
		choice  once.OnUnknown
		flushed bool
	}{{once.Park, false}, {once.Park, true}, {once.Resend, false}, {once.Resend, true}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			f := &faulty{before: failing("extend", 1<<30, errors.New("connection refused"))}
			var attempts atomic.Int64
			finish := make(chan struct{})
			s := serveWith(t, f, "Handler", func(w http.ResponseWriter, r *http.Request) {
				attempt := attempts.Add(1)
				w.Header().Set("Set-Cookie", "session=secret")
				w.WriteHeader(http.StatusEarlyHints)
				fmt.Fprint(w, "attempt ", attempt)
				if attempt > 1 {
					return
				}
				if test.flushed {
					w.(http.Flusher).Flush()
				}
				select {
				case <-r.Context().Done():
				case <-time.After(testenv.Patience):
					t.Error("the handler's context did not end with its lease")
				}
				<-finish
			}, &httponce.Options{OnUnknown: test.choice, Policy: once.Policy{Lease: 100 * time.Millisecond, Wait: once.NoWait}})
			first := make(chan answer, 1)
			go func() { first <- s.send("k", "1") }()
			s.eventually("it runs", func() bool { return attempts.Load() == 1 })
			var met answer
			s.eventually("the lease lapses", func() bool {
				met = s.send("k", "1")
				return met.problem() != "in-progress"
			})
			close(finish)
			a, again := <-first, s.send("k", "1")
			want, runs := "attempt 1", int64(1)
			if test.choice == once.Resend {
				want, runs = "attempt 2", 2
			} else if met.problem() != "outcome-unknown" {
				t.Errorf("while it was parked: %+v", met)
			}
			if again.body != want || !again.replayed() {
				t.Errorf("the repeat got %+v, want %s", again, want)
			}
			switch {
			case test.flushed || test.choice == once.Park:
				if a.status != 200 || a.body != "attempt 1" {
					t.Errorf("the first got %+v", a)
				}
			case a.problem() != "outcome-unknown" || a.header.Get("Set-Cookie") != "":
				t.Errorf("the first got %+v, although another attempt has run", a)
			}
			s.wantRuns(runs)
		})
	}
}

// TestASlowBodyClaimsNoKey sends half a body byte by byte. Nothing is claimed,
// and no other request waits, until the body is complete.
func TestASlowBodyClaimsNoKey(t *testing.T) {
	onEachForm(t, created, nil, func(t *testing.T, s *service) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		head, body, _ := strings.Cut(posted, "\r\n\r\n")
		_, _ = io.WriteString(conn, strings.Replace(head, "/p?", "/payments?", 1)+"\r\n\r\n"+body[:4])
		key := once.Key{Scope: "acme", Operation: "http", ID: "k"}
		if a := s.send("other", "hello"); a.status != 201 {
			t.Errorf("%+v", a)
		}
		if rec, err := s.store.Get(t.Context(), key); err != nil || rec.Status != once.Absent || rec.Attempt != 0 {
			t.Errorf("half a body has claimed: %+v, %v", rec, err)
		}
		if a := s.send("k", "hello"); a.status != 201 || a.replayed() {
			t.Errorf("the same key, faster: %+v", a)
		}
		_, _ = io.WriteString(conn, body[4:])
		if a := readOne(t, conn); a.status != 201 || !a.replayed() {
			t.Errorf("the slow one got %+v", a)
		}
		s.wantRuns(2)
	})
}

func readOne(t *testing.T, conn net.Conn) answer {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(testenv.Patience))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer}
}

// TestAClientThatDisconnectsChangesNothing disconnects the client at each step
// where that could matter.
func TestAClientThatDisconnectsChangesNothing(t *testing.T) {
	begin := func(s *service, request string) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = io.WriteString(conn, strings.Replace(request, "/p?", "/payments?", 1))
		return conn
	}
	t.Run("in the middle of its body", func(t *testing.T) {
		onEachForm(t, created, nil, func(t *testing.T, s *service) {
			begin(s, posted[:len(posted)-1]).Close()
			if a := s.send("k", "hello"); a.status != 201 || a.replayed() {
				t.Errorf("the next got %+v", a)
			}
			s.wantRuns(1)
		})
	})
	t.Run("during the claim", func(t *testing.T) {
		claiming, goOn := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		f := &faulty{after: func(call string) error {
			if call == "claim" && first.CompareAndSwap(false, true) {
				close(claiming)
				<-goOn
			}
			return nil
		}}
		left := make(chan struct{})
		s := serveWith(t, f, "Handler", created, nil)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("leaves") != "" {
				go func() {
					<-r.Context().Done()
					close(left)
				}()
			}
			httponce.Handler(f, tenant, s.counted(http.HandlerFunc(created)), nil).ServeHTTP(w, r)
		}))
		defer server.Close()
		s.url = server.URL
		conn := begin(s, strings.Replace(posted, "a=1", "a=1&leaves=1", 1))
		<-claiming
		conn.Close()
		<-left
		close(goOn)
		s.eventually("the key is free again", func() bool {
			rec, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "k"})
			return err == nil && rec.Status == once.Absent && rec.Attempt == 1
		})
		s.wantRuns(0)
		if a := s.send("k", "hello"); a.status != 201 || a.replayed() {
			t.Errorf("the next got %+v", a)
		}
		s.wantRuns(1)
	})
	t.Run("as a waiting repeat", func(t *testing.T) {
		running, finish := make(chan struct{}), make(chan struct{})
		onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-finish
			created(w, r)
		}, nil, func(t *testing.T, s *service) {
			running, finish = make(chan struct{}), make(chan struct{})
			first := make(chan answer, 1)
			go func() { first <- s.send("k", "hello") }()
			<-running
			begin(s, posted).Close()
			close(finish)
			if a := <-first; a.status != 201 || a.replayed() {
				t.Errorf("the first got %+v", a)
			}
			if a := s.send("k", "hello"); !a.replayed() {
				t.Errorf("the next got %+v", a)
			}
			s.wantRuns(1)
		})
	})
	t.Run("while the response is written", func(t *testing.T) {
		gone := make(chan struct{})
		s := &service{t: t, store: memstore.New(nil)}
		server := httptest.NewServer(forms["Handler"](s, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			fmt.Fprint(w, "head")
			w.(http.Flusher).Flush()
			<-gone
			for range 100 {
				_, _ = fmt.Fprint(w, strings.Repeat("x", 1000)) // it may fail
			}
		}, nil))
		defer server.Close()
		s.url = server.URL
		conn := begin(s, posted)
		_ = readStatus(t, conn)
		conn.Close()
		close(gone)
		if a := s.send("k", "hello"); a.status != 201 || !a.replayed() || len(a.body) != 100_004 {
			t.Errorf("the next got %d, replayed %v, %d bytes", a.status, a.replayed(), len(a.body))
		}
		s.wantRuns(1)
	})
}

func readStatus(t *testing.T, conn net.Conn) string {
	t.Helper()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// TestCrowdWhileStoreIsDown: repeats wait for each other within their limit,
// and none is told that anything was done.
func TestCrowdWhileStoreIsDown(t *testing.T) {
	f := &faulty{before: failing("claim", 1<<30, errors.New("connection refused"))}
	s := serveWith(t, f, "Handler", created, &httponce.Options{Policy: once.Policy{Wait: 300 * time.Millisecond}})
	const crowd = 16
	answers := make(chan answer, crowd)
	for range crowd {
		go func() { answers <- s.send("k", "1") }()
	}
	for range crowd {
		if a := <-answers; a.status != 503 && a.problem() != "in-progress" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %+v", a)
		}
	}
	s.wantRuns(0)
}
