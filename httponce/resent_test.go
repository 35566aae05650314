package httponce

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// flaky is a server that notes the keys of requests. It answers as first until
// it is well.
type flaky struct {
	mu    sync.Mutex
	keys  []string
	first http.HandlerFunc
	well  atomic.Bool
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	f.mu.Lock()
	f.keys = append(f.keys, r.Header.Get(KeyHeader))
	f.mu.Unlock()
	if f.well.Load() {
		w.WriteHeader(http.StatusCreated)
		return
	}
	f.first(w, r)
}

func answers(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func hangsUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func redirects(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/fails" {
		hangsUp(w, r)
	}
	http.Redirect(w, r, "/fails", http.StatusTemporaryRedirect)
}

func breaksOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "half")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// TestAClientAboveThatSendsARequestAgainKeepsItsKey has another client above a
// Transport send two requests. They have one key if the second is the first one
// again, because that has failed.
func TestAClientAboveThatSendsARequestAgainKeepsItsKey(t *testing.T) {
	again := func(r *http.Request) *http.Request { return r }
	withBody := func(text string) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request { // as go-retryablehttp does
			r.Body = io.NopCloser(strings.NewReader(text))
			return r
		}
	}
	for name, test := range map[string]struct {
		first  http.HandlerFunc
		second func(*http.Request) *http.Request
		method string
		ctx    func(context.Context) context.Context
		same   bool
	}{
		"no response":                   {first: hangsUp, second: withBody("1"), same: true},
		"500":                           {first: answers(500), second: withBody("1"), same: true},
		"503":                           {first: answers(503), second: withBody("1"), same: true},
		"429":                           {first: answers(429), second: withBody("1"), same: true},
		"broke off":                     {first: breaksOff, second: withBody("1"), same: true},
		"a copy":                        {first: answers(500), second: func(r *http.Request) *http.Request { return withBody("1")(r.WithContext(context.Background())) }, same: true},
		"redirected, then no response":  {first: redirects, second: withBody("1"), same: true},
		"a body that can be read again": {first: answers(500), second: func(r *http.Request) *http.Request { r.Body, _ = r.GetBody(); return r }, same: true},
		"no body":                       {first: answers(500), second: again, method: http.MethodDelete, same: true},
		"done":                          {first: answers(201), second: withBody("1")},
		"refused":                       {first: answers(422), second: withBody("1")},
		"another body":                  {first: answers(500), second: withBody("2")},
		"another target":                {first: answers(500), second: func(r *http.Request) *http.Request { r.URL.Path = "/b"; return withBody("1")(r) }},
		"a new request":                 {first: answers(500), second: func(r *http.Request) *http.Request { return withBody("1")(r.Clone(r.Context())) }},
		"a new request, with a name":    {first: answers(500), second: func(r *http.Request) *http.Request { return withBody("1")(r.Clone(r.Context())) }, ctx: func(ctx context.Context) context.Context { return WithKey(ctx, "order-1") }, same: true},
		"a new request, the same target": {first: answers(500), second: func(r *http.Request) *http.Request {
			n := r.Clone(r.Context())
			n.URL, _ = url.Parse(r.URL.String())
			return withBody("1")(n)
		}},
	} {
		for clientName, timeout := range map[string]time.Duration{"": 0, "/with a timeout": time.Minute, "/streamed": 0} { // a timeout makes http.Client copy requests
			t.Run(name+clientName, func(t *testing.T) {
				f := &flaky{first: test.first}
				server := httptest.NewServer(f)
				defer server.Close()
				retries := 0
				if clientName == "/streamed" {
					if retries = Never; name == "another body" {
						t.Skip("bodies that are streamed cannot be compared")
					}
				}
				client := &http.Client{Transport: &Transport{Retries: retries, Base: new(http.Transport), sleep: func(context.Context, time.Duration) error { return nil }}, Timeout: timeout}
				defer client.CloseIdleConnections()
				send := func(r *http.Request) {
					resp, err := client.Do(r)
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
				ctx := t.Context()
				if test.ctx != nil {
					ctx = test.ctx(ctx)
				}
				var body io.Reader = bytes.NewReader([]byte("1"))
				method := http.MethodPost
				if test.method != "" {
					method, body = test.method, nil
				}
				r, err := http.NewRequestWithContext(ctx, method, server.URL+"/a", body)
				if err != nil {
					t.Fatal(err)
				}
				if name != "a body that can be read again" && body != nil {
					r.GetBody = nil
				}
				send(r)
				f.well.Store(true)
				send(test.second(r))
				first, last := f.keys[0], f.keys[len(f.keys)-1]
				if first == "" || (first == last) != test.same {
					t.Errorf("keys: %q", f.keys)
				}
				if test.ctx == nil && test.same { // what follows a success is another request
					if send(withBody("1")(r)); f.keys[len(f.keys)-1] == last {
						t.Errorf("after a success: %q", f.keys)
					}
				}
			})
		}
	}
}
