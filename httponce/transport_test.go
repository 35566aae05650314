package httponce

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// seen is an attempt as the server met it.
type seen struct {
	method, key, body string
	length            int64
}

// peer answers each attempt with the next of its statuses, and then with 200.
type peer struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	header   http.Header // of every answer but 200
	attempts []seen
}

func newPeer(t *testing.T, statuses ...int) *peer {
	p := &peer{statuses: statuses, header: http.Header{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempts = append(p.attempts, seen{r.Method, r.Header.Get(KeyHeader), string(body), r.ContentLength})
	if len(p.statuses) == 0 {
		io.WriteString(w, "done")
		return
	}
	for name, values := range p.header {
		w.Header()[name] = values
	}
	w.WriteHeader(p.statuses[0])
	p.statuses = p.statuses[1:]
}

func (p *peer) all() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts
}

// pauses records the pauses of a Transport. They take time only on its own
// clock.
type pauses struct {
	mu   sync.Mutex
	time time.Time
	all  []time.Duration
	then func() // is done in every pause
}

func (p *pauses) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.time
}

func (p *pauses) sleep(ctx context.Context, d time.Duration) error {
	p.mu.Lock()
	p.time = p.time.Add(d)
	p.all = append(p.all, d)
	p.mu.Unlock()
	if p.then != nil {
		p.then()
	}
	return ctx.Err()
}

func (p *pauses) of(t *Transport) *http.Client {
	p.time = time.Now()
	t.now, t.sleep = p.now, p.sleep
	return &http.Client{Transport: t}
}

func clientOf(t *Transport) *http.Client { return new(pauses).of(t) }

func post(t *testing.T, ctx context.Context, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// send returns the answer with its body read.
func send(t *testing.T, c *http.Client, req *http.Request) *http.Response {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp
}

// plain hides the type of a reader, so that http.NewRequest sets no GetBody.
type plain struct{ io.Reader }

func TestEveryAttemptIsTheSame(t *testing.T) {
	bodies := map[string]struct {
		body   io.Reader
		text   string
		length int64
	}{
		"bytes":             {bytes.NewReader([]byte("pay")), "pay", 3},
		"a reader":          {plain{strings.NewReader("pay")}, "pay", 3},
		"an empty reader":   {plain{strings.NewReader("")}, "", 0},
		"none":              {nil, "", 0},
		"as long as may be": {plain{strings.NewReader("12345678")}, "12345678", 8},
	}
	keys := map[string]bool{}
	for name, test := range bodies {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, 503, 502)
			resp := send(t, clientOf(&Transport{MaxBody: 8}), post(t, t.Context(), p.URL, test.body))
			if resp.StatusCode != 200 || Attempts(resp) != 3 {
				t.Fatalf("%s after %d attempts", resp.Status, Attempts(resp))
			}
			first := p.all()[0]
			if !regexp.MustCompile(`^"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"$`).MatchString(first.key) {
				t.Errorf("the key is %s", first.key)
			}
			for _, got := range p.all() {
				if want := (seen{"POST", first.key, test.text, test.length}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
			if keys[first.key] {
				t.Error("two requests have one key")
			}
			keys[first.key] = true
		})
	}
}

func TestALongBodyIsStreamedAndSentOnce(t *testing.T) {
	for _, known := range []int64{-1, 9} {
		p := newPeer(t, 503)
		req := post(t, t.Context(), p.URL, plain{strings.NewReader("123456789")})
		req.ContentLength = known
		base := roundTrip(func(sent *http.Request) (*http.Response, error) {
			if known > 0 && sent.Body != req.Body {
				t.Error("a body that is known to be too long was read ahead")
			}
			return http.DefaultTransport.RoundTrip(sent)
		})
		resp := send(t, clientOf(&Transport{MaxBody: 8, Base: base}), req)
		if want := (seen{"POST", p.all()[0].key, "123456789", known}); resp.StatusCode != 503 || Attempts(resp) != 1 || p.all()[0] != want {
			t.Errorf("%s, %+v, want %+v", resp.Status, p.all(), want)
		}
	}
}

func TestWhereTheKeyComesFrom(t *testing.T) {
	named := func(ctx context.Context) context.Context { return WithKey(ctx, `a "b"`) }
	for name, test := range map[string]struct {
		method string
		ctx    func(context.Context) context.Context
		header []string
		bare   bool
		want   string
	}{
		"the request's own":    {"POST", named, []string{"own"}, false, `own`},
		"WithKey":              {"POST", named, nil, false, `"a \"b\""`},
		"for PUT":              {"PUT", named, nil, false, `"a \"b\""`},
		"for DELETE":           {"DELETE", named, nil, false, `"a \"b\""`},
		"without quotes":       {"POST", func(ctx context.Context) context.Context { return WithKey(ctx, "a:b") }, nil, true, `a:b`},
		"none for GET":         {"GET", named, nil, false, ""},
		"none for HEAD":        {"HEAD", named, nil, false, ""},
		"none, as it was told": {"POST", named, []string{}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, 503)
			req := post(t, test.ctx(t.Context()), p.URL, nil)
			if req.Method = test.method; test.header != nil {
				req.Header[KeyHeader] = test.header
			}
			send(t, clientOf(&Transport{Bare: test.bare}), req)
			for _, got := range p.all() {
				if got.key != test.want {
					t.Errorf("%s, want %s", got.key, test.want)
				}
			}
			if len(p.all()) != 2 {
				t.Errorf("%d attempts", len(p.all()))
			}
		})
	}
}

func TestOneNameGoesEndToEnd(t *testing.T) {
	p := newPeer(t, 503)
	client, store := clientOf(&Transport{}), memstore.New(nil)
	charge := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend}
	work := charge.For("order-1")
	_, err := once.Do(t.Context(), store, work, func(ctx context.Context, key once.Key) (int, error) {
		send(t, client, post(t, ctx, p.URL, nil))
		return 1, errors.New("the answer cannot be read")
	})
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	if _, err := once.Do(t.Context(), store, work, func(ctx context.Context, key once.Key) (int, error) {
		send(t, client, post(t, ctx, p.URL, nil))
		send(t, client, post(t, WithKey(ctx, key.Step("capture").String()), p.URL, nil))
		return 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	whole, step := `"`+work.Key().String()+`"`, `"`+work.Key().Step("capture").String()+`"`
	for i, want := range []string{whole, whole, whole, step} {
		if got := p.all()[i].key; got != want {
			t.Errorf("request %d has the key %s, want %s", i, got, want)
		}
	}
}

// closing counts how often a body was closed.
type closing struct {
	io.Reader
	mu sync.Mutex
	n  int
}

func (c *closing) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return nil
}

func (c *closing) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n > 0
}

func TestBadKeysAreRefusedBeforeAnythingIsSent(t *testing.T) {
	p := newPeer(t)
	for _, test := range []struct {
		key  string
		bare bool
		says string
	}{
		{"", false, "empty"}, {strings.Repeat("k", 256), false, "256 bytes"}, {"kéy", false, "byte 1"}, {"k\n", false, `'\n'`}, {"a,b", true, "','"}, {"", true, "empty"},
	} {
		body := &closing{Reader: strings.NewReader("pay")}
		_, err := clientOf(&Transport{Bare: test.bare}).Do(post(t, WithKey(t.Context(), test.key), p.URL, body))
		if err == nil || !strings.Contains(err.Error(), test.says) || !body.closed() {
			t.Errorf("%q: %v, closed %v", test.key, err, body.closed())
		}
	}
	if n := len(p.all()); n > 0 {
		t.Errorf("%d were sent", n)
	}
	send(t, clientOf(&Transport{}), post(t, WithKey(t.Context(), strings.Repeat("k", 255)), p.URL, nil))
}

// A server that dies after it has read the request: the point of having a key.
func TestABodyThatCannotBeReadFailsTheRequest(t *testing.T) {
	p, broken := newPeer(t), errors.New("broken")
	body := &closing{Reader: io.MultiReader(strings.NewReader("pa"), brokenReader{broken})}
	if _, err := clientOf(&Transport{}).Do(post(t, t.Context(), p.URL, body)); !errors.Is(err, broken) || !body.closed() {
		t.Errorf("%v, closed %v", err, body.closed())
	}

	ctx, cancel := context.WithCancel(t.Context())
	hanging, _ := io.Pipe()
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := clientOf(&Transport{}).Do(post(t, ctx, p.URL, hanging)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	req := post(t, t.Context(), p.URL, strings.NewReader("pay"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, broken }
	p.statuses = []int{503}
	if _, err := clientOf(&Transport{}).Do(req); !errors.Is(err, broken) {
		t.Error(err)
	}
	if n := len(p.all()); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

func TestTheRequestOfTheCallerStaysAsItWas(t *testing.T) {
	p := newPeer(t, 503)
	body := &closing{Reader: strings.NewReader("pay")}
	req := post(t, t.Context(), p.URL, body)
	req.Header.Set("X-Own", "1")
	before := *req
	header := req.Header.Clone()
	resp, err := (&Transport{Base: meddling{}, sleep: new(pauses).sleep}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if req.GetBody != nil || req.ContentLength != before.ContentLength || req.Body != before.Body || !reflect.DeepEqual(req.Header, header) || req.Context() != before.Context() {
		t.Errorf("%+v", req)
	}
	if !body.closed() {
		t.Error("its body was left open")
	}
	if got := resp.Request.Header.Values("X-Meddled"); Attempts(resp) != 2 || len(got) != 1 {
		t.Errorf("the second attempt began with the headers of the first: %v", got)
	}
}

func TestARequestWithoutHeadersGetsItsKey(t *testing.T) {
	p := newPeer(t)
	req := post(t, t.Context(), p.URL, nil)
	req.Header = nil
	resp, err := new(Transport).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if p.all()[0].key == "" || req.Header != nil {
		t.Errorf("%+v; the caller's header is now %v", p.all(), req.Header)
	}
}

// meddling changes the request, as a RoundTripper must not, but some do.
type meddling struct{}

func (meddling) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Add("X-Meddled", "1")
	return http.DefaultTransport.RoundTrip(req)
}

// setting is the end of a body, where its trailers are known.
func TestManyAtOnce(t *testing.T) {
	var mu sync.Mutex
	met := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get(KeyHeader)
		if met[key]++; met[key] == 1 && len(met)%20 == 1 {
			w.WriteHeader(503)
		}
	}))
	defer server.Close()
	client := clientOf(&Transport{})
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 10 {
				resp, err := client.Post(server.URL, "text/plain", plain{strings.NewReader("pay")})
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Error(resp.Status)
				}
			}
		}()
	}
	all.Wait()
	if len(met) != 80 {
		t.Errorf("80 requests had %d keys", len(met))
	}
}

func TestWhatDidNotComeThroughATransportHasNoAttempts(t *testing.T) {
	if n := Attempts(&http.Response{}); n != 0 {
		t.Error(n)
	}
	if n := Attempts(&http.Response{Request: post(t, t.Context(), "http://localhost", nil)}); n != 0 {
		t.Error(n)
	}
}
