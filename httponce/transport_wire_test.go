package httponce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
)

func TestABodyThatMustNotBeReadAheadIsNot(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		io.Copy(w, r.Body)
	}))
	defer server.Close()
	body, writer := io.Pipe()
	resp, err := clientOf(&Transport{MaxBody: Never}).Do(post(t, t.Context(), server.URL, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	go func() {
		io.WriteString(writer, "after the answer began")
		writer.Close()
	}()
	if text, err := io.ReadAll(resp.Body); string(text) != "after the answer began" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	met := make(chan seen, 3)
	go func() {
		for answer := ""; ; answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nIdempotent-Replayed: true\r\n\r\n" {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			met <- swallow(conn, answer)
		}
	}()
	resp := send(t, clientOf(&Transport{Base: new(http.Transport)}), post(t, t.Context(), "http://"+listener.Addr().String(), plain{strings.NewReader("pay")}))
	first, second := <-met, <-met
	if first != second || first.body != "pay" || first.key == "" {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if Attempts(resp) != 2 || !Replayed(resp) {
		t.Errorf("%d attempts, replayed %v", Attempts(resp), Replayed(resp))
	}
}

func TestAnAnswerThatBreaksOffInItsHeadersIsAskedForAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for answer := "HTTP/1.1 200 OK\r\nContent-Le"; ; answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n" {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			swallow(conn, answer)
		}
	}()
	resp := send(t, clientOf(&Transport{Base: new(http.Transport)}), post(t, t.Context(), "http://"+listener.Addr().String(), nil))
	if resp.StatusCode != 201 || Attempts(resp) != 2 || Replayed(resp) {
		t.Errorf("%s after %d attempts, replayed %v", resp.Status, Attempts(resp), Replayed(resp))
	}
}

// swallow reads a request, and closes the connection after the answer.
func swallow(conn net.Conn, answer string) seen {
	defer conn.Close()
	met := readOne(bufio.NewReader(conn))
	io.WriteString(conn, answer)
	return met
}

func readOne(from *bufio.Reader) seen {
	req, err := http.ReadRequest(from)
	if err != nil {
		return seen{body: err.Error()}
	}
	body, _ := io.ReadAll(req.Body)
	return seen{req.Method, req.Header.Get(KeyHeader), string(body), req.ContentLength}
}

// A retry by net/http has the same key and body, and does not count as an
// attempt.
func TestAnIdleConnectionThatWasClosedCostsNoAttempt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	met := make(chan seen, 9)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(conn)
			met <- readOne(reader)
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			met <- readOne(reader)
			conn.Close()
		}
	}()
	client, pauses := &Transport{Base: new(http.Transport)}, &pauses{}
	for range 2 {
		resp := send(t, pauses.of(client), post(t, t.Context(), "http://"+listener.Addr().String(), plain{strings.NewReader("pay")}))
		if Attempts(resp) != 1 || len(pauses.all) > 0 {
			t.Errorf("%d attempts, pauses %v", Attempts(resp), pauses.all)
		}
	}
	if first, second, again := <-met, <-met, <-met; first == second || second != again || again.body != "pay" {
		t.Errorf("%+v, %+v, and again %+v", first, second, again)
	}
	client.CloseIdleConnections()
}

func TestAServerThatComesUpLaterIsReached(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	defer server.Close()
	pauses := &pauses{then: func() {
		if server.Listener.Addr().String() == address {
			return
		}
		again, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server.Listener.Close()
		server.Listener = again
		server.Start()
	}}
	resp := send(t, pauses.of(&Transport{}), post(t, t.Context(), "http://"+address, plain{strings.NewReader("pay")}))
	if resp.StatusCode != 404 || Attempts(resp) != 2 {
		t.Errorf("%s after %d attempts", resp.Status, Attempts(resp))
	}
}

func TestASlowServerIsAskedAgainWhenBaseGivesUp(t *testing.T) {
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer server.Close()
	base := &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond}
	pauses := &pauses{then: func() { close(stuck) }}
	resp := send(t, pauses.of(&Transport{Base: base}), post(t, t.Context(), server.URL, nil))
	if Attempts(resp) != 2 {
		t.Errorf("%d attempts", Attempts(resp))
	}
}

func TestTheLastErrorSaysWhatItIs(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	body := &closing{Reader: strings.NewReader("pay")}
	_, err := clientOf(&Transport{Retries: 1}).Do(post(t, t.Context(), server.URL, body))
	var failed *net.OpError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "(the last of 2 attempts)") || !body.closed() {
		t.Errorf("%v, closed %v", err, body.closed())
	}
	_, err = clientOf(&Transport{Retries: 1, Base: failing{context.DeadlineExceeded}}).Do(post(t, t.Context(), server.URL, nil))
	var timeout *url.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v is not a timeout", err)
	}
}

// A dial error says that nothing was sent: not that nothing was sent last.
func TestADialErrorIsOneOfAllThatWasSent(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	gone := server.URL
	answering := func(t *testing.T, h http.HandlerFunc) *httptest.Server {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s
	}
	dialError := func(t *testing.T, c *http.Client, url string) bool {
		t.Helper()
		_, err := c.Do(post(t, t.Context(), url, strings.NewReader("pay")))
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%v, want a refused connection", err)
		}
		return once.IsDialError(err)
	}
	t.Run("refused each time", func(t *testing.T) {
		for _, retries := range []int{Never, 2} {
			if !dialError(t, clientOf(&Transport{Retries: retries}), gone) {
				t.Errorf("not a dial error, retries: %d", retries)
			}
		}
	})
	for _, status := range []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect} {
		t.Run("redirected to a server that is gone", func(t *testing.T) {
			s := answering(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, gone, status) })
			for _, retries := range []int{Never, 2} {
				if dialError(t, clientOf(&Transport{Retries: retries}), s.URL) {
					t.Errorf("a dial error after %d, retries: %d", status, retries)
				}
			}
		})
	}
	t.Run("the server was there for the first attempt", func(t *testing.T) {
		for _, first := range []int{http.StatusGatewayTimeout, 0} {
			s := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if first == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(first)
			})
			base := &http.Transport{DisableKeepAlives: true}
			pauses := &pauses{then: func() { s.Listener.Close() }}
			if dialError(t, pauses.of(&Transport{Base: base, Retries: 1}), s.URL) {
				t.Errorf("a dial error after %d", first)
			}
		}
	})
	t.Run("net/http met it on a kept connection", func(t *testing.T) {
		var s *httptest.Server
		s = answering(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/pay" {
				s.Listener.Close()
				panic(http.ErrAbortHandler)
			}
		})
		base := &http.Transport{}
		defer base.CloseIdleConnections()
		client := clientOf(&Transport{Base: base, Retries: Never})
		send(t, client, post(t, t.Context(), s.URL, nil))
		if dialError(t, client, s.URL+"/pay") {
			t.Error("a dial error")
		}
	})
}

type failing struct{ err error }

func (f failing) RoundTrip(req *http.Request) (*http.Response, error) {
	closeBody(req)
	return nil, f.err
}

func TestRedirects(t *testing.T) {
	for _, status := range []int{303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			p, end := newPeer(t, status), newPeer(t, 503)
			p.header.Set("Location", end.URL)
			resp := send(t, clientOf(&Transport{}), post(t, t.Context(), p.URL, strings.NewReader("pay")))
			want := seen{"POST", p.all()[0].key, "pay", 3}
			if status == 303 {
				want = seen{method: "GET"}
			}
			if got := end.all(); len(got) != 2 || got[0] != want || got[1] != want || Attempts(resp) != 2 {
				t.Errorf("%+v, want twice %+v; Attempts %d", got, want, Attempts(resp))
			}
		})
	}
}

func TestTrailersAndContinuePass(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Trailer", r.Trailer.Get("X-Sum"))
	}))
	defer server.Close()
	for _, limit := range []int64{0, Never} {
		req := post(t, t.Context(), server.URL, nil)
		req.Header.Set("Expect", "100-continue")
		req.Trailer = http.Header{"X-Sum": nil}
		req.ContentLength = -1
		req.Body = io.NopCloser(io.MultiReader(strings.NewReader("pay"), setting(func() { req.Trailer.Set("X-Sum", "7") })))
		resp := send(t, clientOf(&Transport{MaxBody: limit}), req)
		if got := resp.Header.Get("X-Trailer"); got != "7" {
			t.Errorf("MaxBody %d: the trailer is %q", limit, got)
		}
	}
}

type setting func()

func (s setting) Read([]byte) (int, error) {
	s()
	return 0, io.EOF
}

func TestHTTP2(t *testing.T) {
	p := &peer{statuses: []int{503, 503}, header: http.Header{}}
	server := httptest.NewUnstartedServer(p)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	resp := send(t, clientOf(&Transport{Base: server.Client().Transport}), post(t, t.Context(), server.URL, plain{strings.NewReader("pay")}))
	all := p.all()
	if resp.ProtoMajor != 2 || Attempts(resp) != 3 || len(all) != 3 || all[0] != all[2] || all[0].body != "pay" {
		t.Errorf("%s: %+v", resp.Proto, all)
	}
}

func TestAnswersNobodyGetsReturnTheirConnection(t *testing.T) {
	p := &peer{statuses: []int{503, 503, 503}, header: http.Header{}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.ServeHTTP(w, r)
		io.WriteString(w, strings.Repeat("x", 8<<10))
	}))
	var mu sync.Mutex
	connections := 0
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			connections++
		}
	}
	server.Start()
	defer server.Close()
	send(t, clientOf(&Transport{Base: new(http.Transport)}), post(t, t.Context(), server.URL, nil))
	mu.Lock()
	defer mu.Unlock()
	if connections != 1 || len(p.all()) != 4 {
		t.Errorf("%d connections for %d attempts", connections, len(p.all()))
	}
}

type idle struct {
	failing
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestIdleConnectionsAreThoseOfBase(t *testing.T) {
	base := &idle{}
	(&http.Client{Transport: &Transport{Base: base}}).CloseIdleConnections()
	if !base.closed {
		t.Error("they stay open")
	}
	(&Transport{Base: failing{}}).CloseIdleConnections()
}
