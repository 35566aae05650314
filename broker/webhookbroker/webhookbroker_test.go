package webhookbroker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
)

// plain starts a receiver without TLS.
func plain(tb testing.TB, h http.HandlerFunc) webhookbroker.Options {
	tb.Helper()
	server := httptest.NewServer(h)
	tb.Cleanup(server.Close)
	return webhookbroker.Options{
		Source:    "/orders",
		Default:   webhookbroker.Endpoint{URL: server.URL, Secrets: []string{secret}},
		Allow:     local,
		AllowHTTP: true,
		Timeout:   time.Minute,
	}
}

func message(id, key string) *broker.Message {
	return &broker.Message{ID: id, Topic: "order.paid", OrderingKey: key, Body: []byte("{}")}
}

func one(p broker.Publisher, m *broker.Message) error {
	if errs := p.Publish(context.Background(), []*broker.Message{m}); errs != nil {
		return errs[0]
	}
	return nil
}

func TestHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	p := publisher(t, plain(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	m := &broker.Message{
		ID: `order.7 "é"`, Topic: "order paid", OrderingKey: "100%", Body: []byte("{}"),
		Time: time.Date(2026, 2, 3, 4, 5, 6, 7000, time.FixedZone("", 3600)),
		Header: map[string]string{"content-type": "application/json", "traceparent": "00-a-b-01", "tenant": "ü", "type": "mine",
			"host": "elsewhere", "webhook-id": "another", "averyveryverylongname": "x", "once-seq": "42"},
	}
	if err := one(p, m); err != nil {
		t.Fatal(err)
	}
	h := <-got
	for name, want := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "order.7%20%22%C3%A9%22", "ce-source": "/orders", "ce-type": "order%20paid",
		"ce-partitionkey": "100%25", "ce-time": "2026-02-03T03:05:06.000007Z", "content-type": "application/json",
		"ce-traceparent": "00-a-b-01", "traceparent": "00-a-b-01", "ce-tenant": "%C3%BC", "once-header-type": "mine",
		"ce-host": "elsewhere", "once-header-webhook-id": "another", "once-header-averyveryverylongname": "x",
		"once-seq": "42", "webhook-id": "order%2E7%20%22%C3%A9%22",
	} {
		if all := h.Values(name); len(all) != 1 || all[0] != want {
			t.Errorf("%s: %q, want %q", name, all, want)
		}
	}
	if h.Get("once-header-tenant") != "" || h.Get("ce-once-seq") != "" {
		t.Errorf("a header is there twice: %v", h)
	}
}

// A body without a content type gets none, and an invalid type does not break
// the request.
func TestContentType(t *testing.T) {
	got := make(chan http.Header, 1)
	p := publisher(t, plain(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	m := message("1", "")
	if err := one(p, m); err != nil {
		t.Fatal(err)
	}
	if h := <-got; h.Values("Content-Type") != nil {
		t.Errorf("a type was made up: %v", h)
	}
	m.Header = map[string]string{"content-type": "Straße"}
	if err := one(p, m); err != nil {
		t.Fatal(err)
	}
	if h := <-got; h.Get("once-header-content-type") != "Stra%C3%9Fe" || h.Values("Content-Type") != nil {
		t.Errorf("no type: %v", h)
	}
}

func TestAnswers(t *testing.T) {
	var status atomic.Int64
	o := plain(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(int(status.Load()))
	})
	for code, want := range map[int]string{
		200: "", 201: "", 202: "", 204: "",
		300: "again", 301: "again", 302: "again", 304: "again", 307: "again", 308: "again",
		400: "never", 401: "again", 403: "again", 404: "again", 405: "again", 406: "never", 407: "again", 408: "again",
		409: "again", 410: "again", 411: "never", 413: "never", 415: "never", 421: "again", 422: "never", 425: "again",
		429: "again", 431: "never", 451: "again", 500: "again", 501: "again", 502: "again", 503: "again", 504: "again",
	} {
		p := publisher(t, o)
		status.Store(int64(code))
		err := one(p, message("1", ""))
		got := "again"
		if err == nil {
			got = ""
		} else if errors.Is(err, broker.ErrInvalid) {
			got = "never"
		}
		if got != want {
			t.Errorf("%d: %q, want %q: %v", code, got, want, err)
		}
	}
}

func TestTopicWithoutAnEndpointIsTriedAgain(t *testing.T) {
	o := plain(t, func(http.ResponseWriter, *http.Request) {})
	o.Topics = map[string]webhookbroker.Endpoint{"order.paid": o.Default}
	o.Default = webhookbroker.Endpoint{}
	p := publisher(t, o)
	if err := one(p, message("1", "")); err != nil {
		t.Error(err)
	}
	m := message("2", "")
	m.Topic = "order.lost"
	if err := one(p, m); err == nil || errors.Is(err, broker.ErrInvalid) {
		t.Errorf("the error is %v", err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var paths sync.Map
	p := publisher(t, plain(t, func(w http.ResponseWriter, r *http.Request) {
		paths.Store(r.URL.Path, true)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	if err := one(p, message("1", "")); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("the error is %v", err)
	}
	if _, there := paths.Load("/elsewhere"); there {
		t.Error("the redirect was followed")
	}
}

func TestErrorsSayWhatWasAnsweredAndNotWhereTo(t *testing.T) {
	o := plain(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "POST "+r.URL.Path+" "+r.URL.String()+" no\ntable "+strings.Repeat("x", 1<<20))
	})
	o.Default.URL += "/path%2Dsecret?token=query-secret"
	p := publisher(t, o)
	err := one(p, message("1", ""))
	if text := fmt.Sprint(err); !strings.Contains(text, "no table xxx") || len(text) > 400 || strings.Contains(text, "secret") {
		t.Errorf("the error is %.1000q", text)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if one(p, message("1", "")) == nil {
		t.Error("a closed publisher sends")
	}
	o.Default.URL = strings.Replace(o.Default.URL, "127.0.0.1", "127.0.0.1.invalid", 1)
	if err := one(publisher(t, o), message("1", "")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v", err)
	}
}

func TestOrderEndsAtTheFirstFailure(t *testing.T) {
	var mu sync.Mutex
	var came []string
	p := publisher(t, plain(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("ce-id")
		came = append(came, id)
		if id == "a2" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	invalid := message("", "b")
	errs := p.Publish(context.Background(), []*broker.Message{message("a1", "a"), message("b1", "b"), message("a2", "a"),
		invalid, message("a3", "a"), message("b2", "b"), message("c", ""), message("a4", "a")})
	var failed []int
	for i, err := range errs {
		if err != nil {
			failed = append(failed, i)
		}
	}
	if !slices.Equal(failed, []int{2, 3, 4, 5, 7}) || !errors.Is(errs[3], broker.ErrInvalid) || errors.Is(errs[5], broker.ErrInvalid) {
		t.Errorf("failed: %v, %v", failed, errs)
	}
	slices.Sort(came)
	if want := []string{"a1", "a2", "b1", "c"}; !slices.Equal(came, want) {
		t.Errorf("came: %v, want %v", came, want)
	}
}

// Each request of a key waits for the response to the last one, and takes as
// long as those of other keys.
func TestOrderOfAKeyAndNoMoreAtOnceThanAllowed(t *testing.T) {
	const most = 3
	var mu sync.Mutex
	var atOnce, peak int
	var came []string
	o := plain(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		atOnce++
		peak = max(peak, atOnce)
		if r.Header.Get("ce-partitionkey") == "k" {
			came = append(came, r.Header.Get("ce-id"))
		}
		mu.Unlock()
		time.Sleep(time.Millisecond) // widens what a request overlaps with; nothing waits for it
		mu.Lock()
		atOnce--
		mu.Unlock()
	})
	o.Concurrent = most
	p := publisher(t, o)
	var ms []*broker.Message
	var want []string
	for i := range 40 {
		ms = append(ms, message(fmt.Sprintf("k%02d", i), "k"), message(fmt.Sprintf("x%02d", i), fmt.Sprint("x", i)))
		want = append(want, ms[2*i].ID)
	}
	if errs := p.Publish(context.Background(), ms); errs != nil {
		t.Fatal(errs)
	}
	if !slices.Equal(came, want) {
		t.Errorf("the key came as %v", came)
	}
	if peak > most {
		t.Errorf("%d requests at once, want at most %d", peak, most)
	}
}

func TestNothingMoreGoesToAnEndpointThatIsDown(t *testing.T) {
	for what, fail := range map[string]http.HandlerFunc{
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a 503":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		var calls atomic.Int64
		o := plain(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			fail(w, r)
		})
		working := plain(t, func(http.ResponseWriter, *http.Request) {})
		o.Topics = map[string]webhookbroker.Endpoint{"works": working.Default}
		o.Concurrent = 1
		p := publisher(t, o)
		ms := []*broker.Message{message("1", ""), message("2", ""), message("3", ""), message("4", "")}
		ms[3].Topic = "works"
		errs := p.Publish(context.Background(), ms)
		if errs == nil || errs[0] == nil || errs[1] == nil || errs[2] == nil || errs[3] != nil {
			t.Errorf("%s: the errors are %v", what, errs)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: %d requests to an endpoint that is down", what, n)
		}
		_ = one(p, message("1", ""))
		if n := calls.Load(); n != 2 {
			t.Errorf("%s: the next call has made %d requests, want one", what, n-1)
		}
	}
}

func TestRetryAfterIsKeptTo(t *testing.T) {
	var calls atomic.Int64
	p := publisher(t, plain(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	for range 3 {
		if err := one(p, message("1", "")); err == nil || errors.Is(err, broker.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d requests, want one", n)
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	var calls atomic.Int64
	o := plain(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	o.Allow = nil
	port := o.Default.URL[strings.LastIndex(o.Default.URL, ":"):]
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[64:ff9b::127.0.0.1]"} {
		o.Default.URL = "http://" + host + port
		err := one(publisher(t, o), message("1", ""))
		if err == nil || !strings.Contains(err.Error(), "is not public") || errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if calls.Load() != 0 {
		t.Error("a connection was made")
	}
}

func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	var calls atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	o := plain(t, func(http.ResponseWriter, *http.Request) {})
	o.Default.URL = "http://receiver.invalid/"
	if err := one(publisher(t, o), message("1", "")); err == nil || calls.Load() > 0 {
		t.Errorf("the proxy was called %d times: %v", calls.Load(), err)
	}
}

func TestTimeout(t *testing.T) {
	ended := make(chan struct{})
	o := plain(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen from then on
		w.WriteHeader(http.StatusInternalServerError)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	})
	o.Timeout = 50 * time.Millisecond
	if one(publisher(t, o), message("1", "")) == nil {
		t.Error("an answer that does not end is taken for one")
	}
	<-ended
}

// The body of a response that switches protocols has no end.
func TestASwitchOfProtocolsFails(t *testing.T) {
	ended := make(chan struct{})
	p := publisher(t, plain(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		_, _ = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nx")
		_, _ = io.Copy(io.Discard, connection)
		close(ended)
	}))
	if err := one(p, message("1", "")); err == nil || errors.Is(err, broker.ErrInvalid) {
		t.Errorf("the error is %v", err)
	}
	<-ended
}

// A connection whose peer is gone silently is dropped and not reused.
func TestASilentConnectionIsReplaced(t *testing.T) {
	var silent atomic.Bool
	o := serve(t, func(http.ResponseWriter, *http.Request) {})
	server := strings.TrimPrefix(o.Default.URL, "https://")
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go relayConnections(front, server, &silent)
	o.Default.URL = "https://" + front.Addr().String()
	o.Timeout = 200 * time.Millisecond
	p := publisher(t, o)
	for one(p, message("1", "")) != nil { // a slow machine
	}
	silent.Store(true)
	for attempts := 1; one(p, message("2", "")) != nil; attempts++ {
		if attempts == 50 { // a few are enough
			t.Fatal("the connection is still used")
		}
	}
}

// relayConnections forwards connections. Those that are open when a test
// silences it never send anything again.
func relayConnections(front net.Listener, to string, silent *atomic.Bool) {
	for {
		from, err := front.Accept()
		if err != nil {
			return
		}
		back, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		old := !silent.Load()
		pass := func(to, from net.Conn) {
			defer to.Close()
			buffer := make([]byte, 4096)
			for {
				n, err := from.Read(buffer)
				if err != nil {
					return
				}
				if old && silent.Load() {
					continue
				}
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
		go pass(from, back)
		go pass(back, from)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	good := webhookbroker.Options{Source: "/x", Default: webhookbroker.Endpoint{URL: "https://a.example/x", Secrets: []string{secret}}}
	for what, spoil := range map[string]func(*webhookbroker.Options){
		"no Source": func(o *webhookbroker.Options) { o.Source = "" },
		"a Source":  func(o *webhookbroker.Options) { o.Source = "%zz" },
		"nowhere":   func(o *webhookbroker.Options) { o.Default.URL = "" },
		"http":      func(o *webhookbroker.Options) { o.Default.URL = "http://a.example" },
		"ftp":       func(o *webhookbroker.Options) { o.Default.URL = "ftp://a.example" },
		"no host":   func(o *webhookbroker.Options) { o.Default.URL = "https://:443/x" },
		"relative":  func(o *webhookbroker.Options) { o.Default.URL = "/x" },
		"user":      func(o *webhookbroker.Options) { o.Default.URL = "https://user:word@a.example" },
		"fragment":  func(o *webhookbroker.Options) { o.Default.URL = "https://a.example/#x" },
		"no URL": func(o *webhookbroker.Options) {
			o.Topics = map[string]webhookbroker.Endpoint{"t": o.Default}
			o.Default.URL = ""
		},
		"no secret": func(o *webhookbroker.Options) { o.Default.Secrets = nil },
		"short":     func(o *webhookbroker.Options) { o.Default.Secrets = []string{"whsec_c2hvcnQ="} },
		"no base64": func(o *webhookbroker.Options) { o.Default.Secrets = []string{"whsec_" + strings.Repeat("?", 40)} },
		"in a topic": func(o *webhookbroker.Options) {
			o.Topics = map[string]webhookbroker.Endpoint{"t": {URL: "https://a.example"}}
		},
		"Timeout": func(o *webhookbroker.Options) { o.Timeout = -1 },
	} {
		o := good
		spoil(&o)
		if _, err := webhookbroker.New(o); !errors.Is(err, broker.ErrInvalid) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: %v", what, err)
		}
	}
	p := publisher(t, good)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
