package httponce_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// pair is the same handler bare and guarded.
type pair struct {
	bare, guarded       *httptest.Server
	bareNotes, hisNotes *notes
	runs                func() int64
}

func newPair(t *testing.T, b behaviour, start func(*httptest.Server)) *pair {
	p := &pair{bareNotes: new(notes), hisNotes: new(notes)}
	s := &service{t: t, store: memstore.New(nil)}
	p.runs = s.runs.Load
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.handle(w, r, p.bareNotes) })
	guarded := forms["Handler"](s, func(w http.ResponseWriter, r *http.Request) { b.handle(w, r, p.hisNotes) }, nil)
	p.bare, p.guarded = p.serve(t, b, plain, start), p.serve(t, b, guarded, start)
	return p
}

func (*pair) serve(t *testing.T, b behaviour, h http.Handler, start func(*httptest.Server)) *httptest.Server {
	if b.outside != nil {
		h = b.outside(h)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // aborted and superfluous: the client's view is compared
	start(server)
	t.Cleanup(server.Close)
	return server
}

// TestLikeNetHTTP compares what a client and a handler see, with and without
// the guard.
func TestLikeNetHTTP(t *testing.T) {
	for name, b := range behaviours {
		t.Run("1.1/"+name, func(t *testing.T) {
			request := b.request
			if request == "" {
				request = posted
			}
			compare(t, b, (*httptest.Server).Start, func(server *httptest.Server) *transcript {
				return overTCP(t, server.Listener.Addr().String(), request)
			})
		})
		if b.only1 {
			continue
		}
		t.Run("2/"+name, func(t *testing.T) {
			secure := func(server *httptest.Server) {
				server.EnableHTTP2 = true
				server.StartTLS()
			}
			compare(t, b, secure, func(server *httptest.Server) *transcript { return overHTTP2(t, server, b.request) })
		})
	}
}

func compare(t *testing.T, b behaviour, start func(*httptest.Server), ask func(*httptest.Server) *transcript) {
	p := newPair(t, b, start)
	bare, guarded := ask(p.bare), ask(p.guarded)
	if bare.String() != guarded.String() {
		t.Errorf("bare:\n%s\nguarded:\n%s", bare, guarded)
	}
	if p.bareNotes.String() != p.hisNotes.String() {
		t.Errorf("the handler saw, bare:\n%s\nguarded:\n%s", p.bareNotes, p.hisNotes)
	}
	if b.repeat == "none" {
		return
	}
	again := ask(p.guarded)
	if p.runs() != 1 {
		t.Errorf("the handler ran %d times", p.runs())
	}
	if b.repeat == "" {
		again.wantReplayOf(t, bare)
	} else if got := again.final().problem(); got != b.repeat {
		t.Errorf("the repeat got %q, want %s:\n%s", got, b.repeat, again)
	}
}

// transcript is everything that a client got.
type transcript struct {
	responses []answer
	cut       error // how it ended, if not well
}

func (s *transcript) final() answer {
	if len(s.responses) == 0 {
		return answer{}
	}
	return s.responses[len(s.responses)-1]
}

func (s *transcript) String() string {
	var b strings.Builder
	for _, a := range s.responses {
		fmt.Fprintln(&b, a.status)
		for _, name := range slices.Sorted(maps.Keys(a.header)) {
			if name == "Date" {
				a.header["Date"] = []string{"set"}
			}
			fmt.Fprintf(&b, "%s: %q\n", name, a.header[name])
		}
		if len(a.body) > 1000 {
			a.body = fmt.Sprintf("%s… %d bytes", a.body[:10], len(a.body))
		}
		fmt.Fprintf(&b, "%q\ntrailers %q\n", a.body, a.trailer)
	}
	fmt.Fprintf(&b, "end: %v", s.cut)
	return b.String()
}

// wantReplayOf compares a replay with the recorded part of a response.
func (s *transcript) wantReplayOf(t *testing.T, first *transcript) {
	t.Helper()
	a, b := s.final(), first.final()
	if !a.replayed() || a.status != b.status || a.body != b.body || s.cut != nil {
		t.Errorf("first:\n%s\nrepeat:\n%s", first, s)
	}
	for _, name := range []string{"Content-Type", "Location", "Etag", "Content-Length", "Last-Modified"} {
		flushed := name == "Content-Length" && len(b.header[name]) == 0
		if !slices.Equal(a.header[name], b.header[name]) && !flushed {
			t.Errorf("%s: first %q, repeat %q", name, b.header[name], a.header[name])
		}
	}
}

// overTCP sends a request unchanged and reads until the server closes the
// connection.
func overTCP(t *testing.T, address, request string) *transcript {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testenv.Patience))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return readAnswers(conn)
}

func readAnswers(conn io.Reader) *transcript {
	s, in := new(transcript), bufio.NewReader(conn)
	for {
		if _, err := in.Peek(1); err != nil {
			if err != io.EOF {
				s.cut = err
			}
			return s
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
		if err != nil {
			s.cut = err
			return s
		}
		body, err := io.ReadAll(resp.Body)
		if resp.ContentLength >= 0 && resp.StatusCode >= 200 {
			resp.Header.Set("Content-Length", fmt.Sprint(resp.ContentLength))
		}
		resp.Header["(framing)"] = append(resp.TransferEncoding, fmt.Sprint("close ", resp.Close))
		s.responses = append(s.responses, answer{resp.StatusCode, resp.Header, string(body), resp.Trailer})
		if s.cut = err; err != nil {
			return s
		}
	}
}

// overHTTP2 sends the request, as it is written for HTTP/1.1, over HTTP/2.
func overHTTP2(t *testing.T, server *httptest.Server, request string) *transcript {
	t.Helper()
	if request == "" {
		request = posted
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request)))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	out, _ := http.NewRequestWithContext(t.Context(), r.Method, server.URL+r.URL.String(), bytes.NewReader(body))
	out.Header = r.Header
	out.Header.Del("Connection")
	s := new(transcript)
	out = out.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		s.responses = append(s.responses, answer{status: code, header: http.Header(header)})
		return nil
	}}))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(out)
	if err != nil {
		s.cut = errors.New("no response")
		return s
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 {
		t.Fatalf("HTTP/%d", resp.ProtoMajor)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		s.cut = errors.New("cut off")
	}
	s.responses = append(s.responses, answer{resp.StatusCode, resp.Header, string(got), resp.Trailer})
	return s
}

// TestMaxBytesHandler has an outer limit that is lower than the guard's.
func TestMaxBytesHandler(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(http.MaxBytesHandler(forms["Handler"](s, created, nil), 10))
	defer server.Close()
	s.url = server.URL
	for range 2 {
		a := s.send("k", strings.Repeat("x", 11), func(r *http.Request) { r.ContentLength = -1 })
		s.wantProblem(a, 413, "body-too-large")
		if strings.Contains(a.body, "1048576") {
			t.Errorf("it names a limit that is not the one: %s", a.body)
		}
	}
	s.wantRuns(0)
	if a := s.send("k", "10"); a.status != 201 {
		t.Errorf("nothing was claimed, yet: %+v", a)
	}
}

// TestHeldUntilCommit checks that HandlerTx refuses to send anything before the
// commit.
func TestHeldUntilCommit(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	flushed, hijacked := make(chan error, 2), make(chan error, 2)
	server := httptest.NewServer(forms["HandlerTx"](s, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		flushed <- http.NewResponseController(w).Flush()
		_, _, err := w.(http.Hijacker).Hijack()
		hijacked <- err
		created(w, r)
		w.Header().Set(http.TrailerPrefix+"Sum", "1")
		w.(http.Flusher).Flush()
	}, nil))
	defer server.Close()
	first := overTCP(t, server.Listener.Addr().String(), posted)
	if len(first.responses) != 1 || first.final().status != 201 || first.final().body != `{"paid":"hello"}` {
		t.Errorf("%s", first)
	}
	for _, err := range []error{<-flushed, <-hijacked} {
		if !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("got %v", err)
		}
	}
	overTCP(t, server.Listener.Addr().String(), posted).wantReplayOf(t, first)
}
