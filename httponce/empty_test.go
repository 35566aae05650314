package httponce_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/memstore"
)

// observedBody is a body that middleware has wrapped, as that for traces does.
type observedBody struct {
	io.ReadCloser
	read int
}

func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}

// TestEmptyBodiesOfUnknownLength sends bodies without a length, over HTTP/1.1
// and HTTP/2. One that is empty is valid, whatever middleware does with it. One
// that middleware has read to its end looks empty, and is refused: otherwise it
// would be equal to every other.
func TestEmptyBodiesOfUnknownLength(t *testing.T) {
	outer := map[string]struct {
		do    func(w http.ResponseWriter, r *http.Request)
		whole bool // if the body has bytes
	}{
		"nothing": {func(http.ResponseWriter, *http.Request) {}, true},
		"a limit": {func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 100) }, true},
		"a trace": {func(_ http.ResponseWriter, r *http.Request) { r.Body = &observedBody{ReadCloser: r.Body} }, true},
		"both": {func(w http.ResponseWriter, r *http.Request) {
			r.Body = &observedBody{ReadCloser: http.MaxBytesReader(w, r.Body, 100)}
		}, true},
		"reads":    {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, false},
		"decodes":  {func(_ http.ResponseWriter, r *http.Request) { _ = json.NewDecoder(r.Body).Decode(new(any)) }, false},
		"a form":   {func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm() }, false},
		"by bytes": {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 5)) }, false},
		"traced and read": {func(_ http.ResponseWriter, r *http.Request) {
			r.Body = &observedBody{ReadCloser: r.Body}
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
		}, false},
		"puts nothing back": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body = io.NopCloser(new(bytes.Reader))
		}, false},
	}
	const head = "POST /p?a=1 HTTP/1.1\r\nHost: h\r\nTenant: acme\r\nIdempotency-Key: k\r\nContent-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
	const chunked = head + "Transfer-Encoding: chunked\r\n"
	raw := func(request string) func(*testing.T, *httptest.Server) answer {
		return func(t *testing.T, server *httptest.Server) answer {
			return overTCP(t, server.Listener.Addr().String(), request).final()
		}
	}
	over2 := func(body string) func(*testing.T, *httptest.Server) answer {
		return func(t *testing.T, server *httptest.Server) answer {
			s := &service{t: t, url: server.URL, client: &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
				TLSClientConfig: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}}}
			defer s.client.CloseIdleConnections()
			return s.send("k", "", header("Content-Type", "application/x-www-form-urlencoded"), func(r *http.Request) {
				r.Body, r.GetBody, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(body))), nil, -1
			})
		}
	}
	for name, test := range map[string]struct {
		send  func(*testing.T, *httptest.Server) answer
		empty bool
		http2 bool
	}{
		"1.1, empty":                {raw(chunked + "\r\n0\r\n\r\n"), true, false},
		"1.1, empty, a trailer":     {raw(chunked + "Trailer: Sum\r\n\r\n0\r\nSum: 1\r\n\r\n"), true, false},
		"1.1, empty, an extension":  {raw(chunked + "\r\n0;a=b\r\n\r\n"), true, false},
		"1.1, empty, expected":      {raw(chunked + "Expect: 100-continue\r\n\r\n0\r\n\r\n"), true, false},
		"1.1, five bytes":           {raw(chunked + "\r\n5\r\n[1,2]\r\n0\r\n\r\n"), false, false},
		"1.1, five chunks":          {raw(chunked + "\r\n1\r\n[\r\n1\r\n1\r\n1\r\n,\r\n1\r\n2\r\n1\r\n]\r\n0\r\n\r\n"), false, false},
		"1.1, five bytes, expected": {raw(chunked + "Expect: 100-continue\r\n\r\n5\r\n[1,2]\r\n0\r\n\r\n"), false, false},
		"2, empty":                  {over2(""), true, true},
		"2, five bytes":             {over2("[1,2]"), false, true},
	} {
		for did, o := range outer {
			t.Run(name+"/"+did, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				var length int64
				guarded := forms["Handler"](s, created, nil)
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					length = r.ContentLength
					o.do(w, r)
					guarded.ServeHTTP(w, r)
				}))
				if test.http2 {
					server.EnableHTTP2 = true
					server.StartTLS()
				} else {
					server.Start()
				}
				defer server.Close()
				a := test.send(t, server)
				if length != -1 {
					t.Fatalf("the length is known: %d", length)
				}
				switch {
				case test.empty && did != "puts nothing back" || o.whole:
					if a.status != http.StatusCreated {
						t.Errorf("got %+v", a)
					}
				default:
					s.wantProblem(a, 500, "body-not-whole")
				}
			})
		}
	}
}
