package httponce

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// TestARefusedRequestNeedNotSendItsBody: a request that the limits refuse gets
// its response without its body having been read, and its connection is closed.
// A request without a body keeps its connection.
func TestARefusedRequestNeedNotSendItsBody(t *testing.T) {
	for name, test := range map[string]struct {
		limits Limits
		key    string
		body   string // the framing of a body that is not sent
		status int
		close  bool
	}{
		"one repeat too many":          {Limits{Waiting: 1}, "k", "Content-Length: 5\r\n", 409, true},
		"one repeat too many, chunked": {Limits{Waiting: 1}, "k", "Transfer-Encoding: chunked\r\n", 409, true},
		"one key too many":             {Limits{Open: 1}, "other", "Content-Length: 5\r\n", 429, true},
		"no body":                      {Limits{Open: 1}, "other", "Content-Length: 0\r\n", 429, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running, finish := make(chan struct{}), make(chan struct{})
			end := sync.OnceFunc(func() { close(finish) })
			defer end()
			guarded := Handler(memstore.New(nil), anyone, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				close(running)
				<-finish
			}), &Options{Limits: test.limits, Policy: patient}).(*guard)
			waiting := func() int {
				guarded.limiter.mu.Lock()
				defer guarded.limiter.mu.Unlock()
				return guarded.limiter.callers["anyone"].waiting
			}
			ended := make(chan int, 2)
			send := func() {
				w := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("hello"))
				r.Header.Set(KeyHeader, "k")
				guarded.ServeHTTP(w, r)
				ended <- w.Code
			}
			go send()
			<-running
			sent := 1
			if test.limits.Waiting > 0 { // one may wait
				go send()
				sent++
				for deadline := time.Now().Add(testenv.Patience); waiting() < 1 && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond)
				}
			}
			server := httptest.NewServer(guarded)
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second)) // passes only if it fails
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: %s\r\n%s\r\n", test.key, test.body)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("no response without a body: %v", err)
			}
			if resp.StatusCode != test.status || resp.Close != test.close {
				t.Errorf("got %d, closed: %t", resp.StatusCode, resp.Close)
			}
			end()
			for range sent {
				if code := <-ended; code != http.StatusOK {
					t.Errorf("got %d", code)
				}
			}
		})
	}
}
