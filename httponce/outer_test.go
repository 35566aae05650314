package httponce_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// compressed compresses responses as gorilla's CompressHandler does: it sets
// Content-Encoding before the handler runs.
func compressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(&compressor{w, z}, r)
	})
}

type compressor struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (c *compressor) WriteHeader(status int) {
	c.Header().Del("Content-Length")
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressor) Write(p []byte) (int, error) {
	if c.Header().Get("Content-Type") == "" {
		c.Header().Set("Content-Type", http.DetectContentType(p))
	}
	return c.z.Write(p)
}

// plain returns the body of a response, decompressed if its header says so.
func plain(t *testing.T, a answer) string {
	t.Helper()
	if a.header.Get("Content-Encoding") != "gzip" {
		return a.body
	}
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Errorf("the body is not compressed as its header says: %v", err)
		return ""
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// TestCompressionOutsideTheGuardIsOfOneResponse repeats requests that accept
// compression and requests that do not. Each response, and each problem, is
// encoded as its own header says.
func TestCompressionOutsideTheGuardIsOfOneResponse(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"typed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/csv")
			_, _ = io.WriteString(w, "a;b")
		},
		"untyped": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a;b") },
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a;b")
			_ = http.NewResponseController(w).Flush()
		},
	} {
		for form, guard := range forms {
			for _, accepts := range [][]string{{"gzip", "", "gzip"}, {"", "gzip", ""}, {"gzip", "gzip", ""}} {
				t.Run(name+"/"+form+"/"+strings.Join(accepts, ","), func(t *testing.T) {
					s := &service{t: t, store: memstore.New(nil)}
					server := httptest.NewServer(compressed(guard(s, handle, nil)))
					defer server.Close()
					s.url, s.client = server.URL, &http.Client{Transport: &http.Transport{DisableCompression: true}}
					kind := ""
					for i, accept := range accepts {
						a := s.send("k", "1", header("Accept-Encoding", accept))
						if i == 0 {
							kind = a.header.Get("Content-Type")
						}
						if plain(t, a) != "a;b" || (a.header.Get("Content-Encoding") == "gzip") != (accept == "gzip") || a.replayed() != (i > 0) {
							t.Errorf("response %d: %+v", i, a)
						}
						if got := a.header.Values("Vary"); !slices.Equal(got, []string{"Accept-Encoding"}) || a.header.Get("Content-Type") != kind {
							t.Errorf("response %d: %v", i, a.header)
						}
						problem := s.send("k", "2", header("Accept-Encoding", accept))
						problem.body = plain(t, problem)
						s.wantProblem(problem, 422, "key-reused")
					}
					s.wantRuns(1)
				})
			}
		}
	}
}

// TestHeadersOfOuterHandlersAreNotRecorded: a repeat gets the headers that outer
// handlers set for it, and none that they set for the first request.
func TestHeadersOfOuterHandlersAreNotRecorded(t *testing.T) {
	listed := []string{"X-Origin", "X-Set", "X-Both"}
	for name, test := range map[string]struct {
		first, repeat http.Header // set outside
		handler       func(http.Header)
		want          http.Header // of the repeat
	}{
		"set for the first only":          {http.Header{"Content-Language": {"de"}, "X-Origin": {"a"}, "Cache-Control": {"private"}}, nil, func(http.Header) {}, nil},
		"set for the repeat only":         {nil, http.Header{"X-Origin": {"b"}}, func(http.Header) {}, http.Header{"X-Origin": {"b"}}},
		"set anew by the handler":         {http.Header{"X-Set": {"1"}}, nil, func(h http.Header) { h.Set("X-Set", "1") }, http.Header{"X-Set": {"1"}}},
		"added to by the handler":         {http.Header{"Vary": {"Origin"}}, nil, func(h http.Header) { h.Add("Vary", "Accept") }, http.Header{"Vary": {"Accept"}}},
		"added to, and set for both":      {http.Header{"Vary": {"Origin"}}, http.Header{"Vary": {"Origin"}}, func(h http.Header) { h.Add("Vary", "Accept") }, http.Header{"Vary": {"Origin", "Accept"}}},
		"a default that the handler uses": {http.Header{"Content-Type": {"text/csv"}}, nil, func(http.Header) {}, http.Header{"Content-Type": {"text/csv"}}},
		"removed by the handler":          {http.Header{"X-Both": {"1"}}, nil, func(h http.Header) { h.Del("X-Both") }, nil},
	} {
		for form, guard := range forms {
			t.Run(name+"/"+form, func(t *testing.T) {
				s := &service{t: t, store: memstore.New(nil)}
				inner := guard(s, func(w http.ResponseWriter, _ *http.Request) {
					test.handler(w.Header())
					_, _ = io.WriteString(w, "a;b")
				}, &httponce.Options{Headers: listed})
				outside := test.first
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					for name, values := range outside.Clone() {
						w.Header()[name] = values
					}
					inner.ServeHTTP(w, r)
				}))
				defer server.Close()
				s.url = server.URL
				s.send("k", "1")
				outside = test.repeat
				again := s.send("k", "1")
				for _, name := range append(listed, "Vary", "Content-Language", "Cache-Control") {
					if !again.replayed() || !slices.Equal(again.header.Values(name), test.want.Values(name)) {
						t.Errorf("%s: %q, want %q", name, again.header.Values(name), test.want.Values(name))
					}
				}
				if kind := test.want.Get("Content-Type"); kind != "" && again.header.Get("Content-Type") != kind {
					t.Errorf("Content-Type: %q, want %q", again.header.Get("Content-Type"), kind)
				}
			})
		}
	}
}
