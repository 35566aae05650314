package httponce

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// upload is a body of n bytes that takes no memory, and says when it was read.
type upload struct {
	left int
	fill byte
	read func()
}

func (u *upload) Read(p []byte) (int, error) {
	if u.left == 0 {
		u.read()
		return 0, io.EOF
	}
	n := min(len(p), u.left)
	u.left -= n
	for i := range p[:n] {
		p[i] = u.fill
	}
	return n, nil
}

func (u *upload) request(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", u)
	r.Header.Set(KeyHeader, key)
	r.ContentLength = int64(u.left)
	return r
}

func anyone(*http.Request) (string, error) { return "anyone", nil }

// patient lets repeats wait on a machine that is busy.
var patient = once.Policy{Wait: 5 * time.Minute}

// live returns the size of the live heap.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWaitingRepeatsShareTheBody: repeats that wait hold nothing of their own,
// however many they are.
func TestWaitingRepeatsShareTheBody(t *testing.T) {
	const repeats, size = 200, 1 << 20
	finish, running := make(chan struct{}), make(chan struct{})
	var answered, wrong atomic.Int64
	guarded := Handler(memstore.New(nil), anyone, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-finish
		if n, _ := io.Copy(io.Discard, r.Body); n != size {
			wrong.Add(1)
		}
	}), &Options{Limits: Limits{Open: 1}, Policy: patient})
	var all, read sync.WaitGroup
	send := func() {
		all.Add(1)
		read.Add(1)
		go func() {
			defer all.Done()
			w := httptest.NewRecorder()
			guarded.ServeHTTP(w, (&upload{size, 'x', read.Done}).request("k"))
			if w.Code == http.StatusOK {
				answered.Add(1)
			}
		}()
	}
	before := live()
	send()
	<-running
	for range repeats {
		send()
	}
	read.Wait()
	held := live() - before
	t.Logf("%d repeats of 1 MiB hold %.1f MiB", repeats, float64(held)/(1<<20))
	if held > 30<<20 {
		t.Error("that is more than one body")
	}
	close(finish)
	all.Wait()
	if answered.Load() != repeats+1 || wrong.Load() > 0 {
		t.Errorf("%d of %d got the answer", answered.Load(), repeats+1)
	}
}

// TestRequestsWithOneKeyFindTheirOwnBodies reads bodies with one key
// concurrently and in pieces of any size: equal ones, prefixes of others, and
// ones that differ in a byte. Each request gets its own body, and none is held
// at the end.
func TestRequestsWithOneKeyFindTheirOwnBodies(t *testing.T) {
	var likely [6][]byte
	base := make([]byte, 100<<10)
	for i := range base {
		base[i] = byte(rand.Uint32())
	}
	for i := range likely {
		likely[i] = bytes.Clone(base[:len(base)-i/3*50<<10])
		if i%3 > 0 {
			likely[i][rand.IntN(len(likely[i]))]++
		}
	}
	set := &settings{Options: Options{MaxBody: 1 << 20}, bodies: newBodies()}
	var all sync.WaitGroup
	for i := range 16 {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := range 30 {
				want := likely[(i+j)%len(likely)]
				r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(&pieces{want}))
				r.ContentLength = []int64{-1, int64(len(want))}[j%2]
				x := &exchange{settings: set, w: httptest.NewRecorder(), r: r, key: once.Key{Operation: "http", ID: "k"}}
				if err := x.readBody(); err != nil || !bytes.Equal(x.body.bytes(), want) {
					t.Errorf("request %d, %d has another body", i, j)
				}
				got, err := io.ReadAll(x.run.request(t.Context(), r, &x.body).Body)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("handler %d, %d: another body, %v", i, j, err)
				}
				x.close()
			}
		}()
	}
	all.Wait()
	if len(set.bodies.held) > 0 {
		t.Errorf("%d bodies are held", len(set.bodies.held))
	}
}

// pieces is a reader of short reads.
type pieces struct{ left []byte }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[:min(1+rand.IntN(20<<10), len(p.left))])
	p.left = p.left[n:]
	runtime.Gosched()
	return n, nil
}

// TestARepeatThatTakesOverHasTheWholeBody: a repeat runs the handler with the
// whole body if the first request was not done.
func TestARepeatThatTakesOverHasTheWholeBody(t *testing.T) {
	for name, body := range map[string]string{"small": "hello", "large": strings.Repeat("hello", 50_000)} {
		t.Run(name, func(t *testing.T) {
			finish, running := make(chan struct{}), make(chan struct{})
			var runs atomic.Int64
			guarded := Handler(memstore.New(nil), anyone, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, _ := io.ReadAll(r.Body)
				if string(got) != body {
					t.Errorf("the handler got %d bytes", len(got))
				}
				if runs.Add(1) == 1 {
					close(running)
					<-finish
					w.WriteHeader(http.StatusTooManyRequests)
				}
			}), &Options{Policy: patient})
			var all, read sync.WaitGroup
			var ok atomic.Int64
			for i := range 5 {
				all.Add(1)
				read.Add(1)
				go func() {
					defer all.Done()
					w := httptest.NewRecorder()
					r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(body), &upload{0, 0, read.Done}))
					r.Header.Set(KeyHeader, "k")
					guarded.ServeHTTP(w, r)
					if w.Code == 200 {
						ok.Add(1)
					}
				}()
				if i == 0 {
					<-running
				}
			}
			read.Wait()
			close(finish)
			all.Wait()
			if ok.Load() != 4 || runs.Load() != 2 {
				t.Errorf("%d runs, %d answers", runs.Load(), ok.Load())
			}
		})
	}
}

// TestLimitsComeBeforeTheBody: the body of a request over the limits is not
// read, so the request uses no memory.
func TestLimitsComeBeforeTheBody(t *testing.T) {
	const waiting = 3
	finish, running := make(chan struct{}), make(chan struct{})
	store := memstore.New(nil)
	guarded := Handler(store, anyone, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(running)
		<-finish
	}), &Options{Limits: Limits{Open: 1, Waiting: waiting}, Policy: patient})
	var all, read sync.WaitGroup
	var answered atomic.Int64
	send := func() {
		all.Add(1)
		read.Add(1)
		go func() {
			defer all.Done()
			w := httptest.NewRecorder()
			guarded.ServeHTTP(w, (&upload{100, 'x', read.Done}).request("k"))
			if w.Code == http.StatusOK {
				answered.Add(1)
			}
		}()
	}
	refused := func(key, problem string) {
		t.Helper()
		w := httptest.NewRecorder()
		body := &upload{100, 'x', func() {}}
		guarded.ServeHTTP(w, body.request(key))
		if !strings.Contains(w.Body.String(), problem) || w.Header().Get("Retry-After") == "" || body.left < 100 {
			t.Errorf("%s: %d %s, %d bytes unread", key, w.Code, w.Body, body.left)
		}
	}
	send()
	<-running
	for range waiting {
		send()
	}
	read.Wait()
	refused("k", "#in-progress")
	refused("other", "#too-many-requests")

	// A key that runs elsewhere is known, so its repeats may wait: they count,
	// too.
	held, err := store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: once.Key{Scope: "anyone", Operation: "http", ID: "elsewhere"}, Owner: [16]byte{1}}, Lease: time.Minute})
	if err != nil || held.Status != once.Running {
		t.Fatal(held, err)
	}
	refused("elsewhere", "#in-progress")
	close(finish)
	all.Wait()
	if answered.Load() != waiting+1 {
		t.Errorf("%d got the answer", answered.Load())
	}
	w := httptest.NewRecorder()
	guarded.ServeHTTP(w, (&upload{100, 'x', func() {}}).request("k"))
	if w.Code != http.StatusOK {
		t.Errorf("a place was not given back: %d", w.Code)
	}
	if s := guarded.(*guard).limiter.callers["anyone"]; s.waiting != 0 || len(s.open) != 0 {
		t.Errorf("%+v is counted in the end", s)
	}
}

// TestAnAnnouncedBodyReservesNoMemory: a client that announces a large body and
// sends nothing uses no memory.
func TestAnAnnouncedBodyReservesNoMemory(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	r.ContentLength = 1 << 30
	x := &exchange{settings: &settings{Options: Options{MaxBody: 1 << 30}, bodies: newBodies()}, w: httptest.NewRecorder(), r: r}
	heldBodies = sync.Pool{New: heldBodies.New} // none that was used before
	if x.readBody() == nil {
		t.Error("it was read")
	}
	if got := cap(x.body.held.data); got > 0 {
		t.Errorf("%d bytes were made ready", got)
	}
}
