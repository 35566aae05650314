package httponce_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// outer is middleware that stands outside the guard and does something to the
// body of a request before the guard sees it.
type outer struct {
	read func(w http.ResponseWriter, r *http.Request)
	body func(amount string) (body, contentType string) // default: an amount in JSON
	// Without WatchBody, a body of known length and one of unknown length get
	// the same treatment unless unseen is set: then the guard cannot tell that
	// the body of unknown length is not whole.
	unseen bool
	// unseen2 is unseen for HTTP/2 only.
	unseen2 bool
	whole   bool // the guard sees the whole body
	other   bool // the guard sees another body than was sent, but all of it
}

func asForm(amount string) (body, contentType string) {
	return "account=a&amount=" + amount, "application/x-www-form-urlencoded"
}

func asMultipart(amount string) (body, contentType string) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	_ = form.SetBoundary("b")
	_ = form.WriteField("amount", amount)
	_ = form.Close()
	return b.String() + "epilogue", form.FormDataContentType()
}

func asGzip(amount string) (body, contentType string) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, strings.Repeat(amount, 100))
	_ = w.Close()
	return b.String(), "application/json"
}

func restore(r *http.Request, read []byte) { r.Body = io.NopCloser(bytes.NewReader(read)) }

var outers = map[string]outer{
	"nothing":        {whole: true, read: func(http.ResponseWriter, *http.Request) {}},
	"MaxBytesReader": {whole: true, read: func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 1<<20) }},
	"a wrapper":      {whole: true, read: func(_ http.ResponseWriter, r *http.Request) { r.Body = struct{ io.ReadCloser }{r.Body} }},
	"restored": {whole: true, read: func(_ http.ResponseWriter, r *http.Request) {
		all, _ := io.ReadAll(r.Body)
		restore(r, all)
	}},
	"a buffer": {whole: true, read: func(_ http.ResponseWriter, r *http.Request) {
		var all bytes.Buffer
		_, _ = all.ReadFrom(r.Body)
		r.Body = io.NopCloser(&all)
	}},
	"the beginning put back": {whole: true, read: func(_ http.ResponseWriter, r *http.Request) {
		begin := make([]byte, 4)
		n, _ := io.ReadFull(r.Body, begin)
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(begin[:n]), r.Body))
	}},
	"a form restored": {whole: true, body: asForm, read: func(_ http.ResponseWriter, r *http.Request) {
		all, _ := io.ReadAll(r.Body)
		restore(r, all)
		_ = r.ParseForm()
		restore(r, all)
	}},
	"JSON asked for form values": {whole: true, read: func(_ http.ResponseWriter, r *http.Request) { r.FormValue("account") }},
	"unpacked": {other: true, body: asGzip, read: func(_ http.ResponseWriter, r *http.Request) {
		if unpacked, err := gzip.NewReader(r.Body); err == nil {
			r.Body = unpacked
		}
	}},
	"all": {read: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }},
	"all, then NoBody": {read: func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body = http.NoBody
	}},
	"all, then nothing announced": {unseen2: true, read: func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body, r.ContentLength = http.NoBody, 0
	}},
	"all, closed":     {read: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() }},
	"the beginning":   {unseen: true, read: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 14)) }},
	"all but the end": {unseen: true, read: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.CopyN(io.Discard, r.Body, 40) }},
	"a part, and a cap": {unseen: true, read: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 14)
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	}},
	"cut short":      {unseen: true, read: func(_ http.ResponseWriter, r *http.Request) { r.Body = io.NopCloser(io.LimitReader(r.Body, 4)) }},
	"a JSON decoder": {read: func(_ http.ResponseWriter, r *http.Request) { _ = json.NewDecoder(r.Body).Decode(new(any)) }},
	"a form":         {body: asForm, read: func(_ http.ResponseWriter, r *http.Request) { _ = r.FormValue("account") }},
	"a capped form": {body: asForm, read: func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		_ = r.FormValue("account")
	}},
	"a multipart form": {body: asMultipart, read: func(_ http.ResponseWriter, r *http.Request) { _ = r.FormValue("amount") }},
	"a multipart reader": {body: asMultipart, read: func(_ http.ResponseWriter, r *http.Request) {
		if parts, err := r.MultipartReader(); err == nil {
			_, _ = parts.NextPart()
		}
	}},
}

// send sends the amount 10 and then 20 under one key, and 10 once more.
func (o outer) send(s *service, chunked bool) (first, another, again answer) {
	pay := func(amount string) answer {
		body, contentType := `{"account":"a", "amount":`+amount+`, "text":"for the bill of May"}`, "application/json"
		if o.body != nil {
			body, contentType = o.body(amount)
		}
		return s.send("k", body, func(r *http.Request) {
			r.Header.Set("Content-Type", contentType)
			if chunked {
				r.ContentLength = -1
			}
		})
	}
	return pay("10"), pay("20"), pay("10")
}

func framings(t *testing.T, test func(t *testing.T, start func(http.Handler) *service, chunked bool)) {
	for name, chunked := range map[string]bool{"length": false, "chunked": true} {
		t.Run(name, func(t *testing.T) {
			test(t, func(h http.Handler) *service {
				server := httptest.NewServer(h)
				t.Cleanup(server.Close)
				return &service{t: t, url: server.URL}
			}, chunked)
		})
	}
	t.Run("HTTP/2 without a length", func(t *testing.T) {
		test(t, func(h http.Handler) *service {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != 2 || r.ContentLength != -1 {
					t.Errorf("HTTP/%d with the length %d", r.ProtoMajor, r.ContentLength)
				}
				h.ServeHTTP(w, r)
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			return &service{t: t, url: server.URL, client: server.Client()}
		}, true)
	})
}

// TestBodiesThatAreNotWhole has middleware outside the guard that reads a part
// of the body. Another body under the same key never gets the first response:
// the guard compares what was sent, or refuses the request.
func TestBodiesThatAreNotWhole(t *testing.T) {
	for name, o := range outers {
		t.Run(name, func(t *testing.T) {
			framings(t, func(t *testing.T, start func(http.Handler) *service, chunked bool) {
				logged := new(notes)
				store := memstore.New(&memstore.Options{Options: once.Options{Logger: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
					logged.add("%s", p)
					return len(p), nil
				}), nil))}})
				s := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					o.read(w, r)
					httponce.Handler(store, tenant, http.HandlerFunc(created), nil).ServeHTTP(w, r)
				}))
				if chunked && (o.unseen || o.unseen2 && s.client != nil) {
					t.Skip("only WatchBody sees it: TestWatchBody")
				}
				first, another, again := o.send(s, chunked)
				if o.whole || o.other {
					if first.status != 201 || !again.replayed() {
						t.Errorf("the first got %+v, its repeat %+v", first, again)
					}
					s.wantProblem(another, 422, "key-reused")
					return
				}
				for _, a := range []answer{first, another, again} {
					s.wantProblem(a, 500, "body-not-whole")
				}
				if !strings.Contains(logged.String(), "WatchBody") {
					t.Errorf("the log does not say what to do: %s", logged)
				}
			})
		})
	}
}

// TestWatchBody is TestBodiesThatAreNotWhole with WatchBody outermost: requests
// are compared by what was sent, whatever middleware has read.
func TestWatchBody(t *testing.T) {
	for name, o := range outers {
		t.Run(name, func(t *testing.T) {
			framings(t, func(t *testing.T, start func(http.Handler) *service, chunked bool) {
				store := memstore.New(nil)
				s := start(httponce.WatchBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					o.read(w, r)
					httponce.Handler(store, tenant, http.HandlerFunc(created), nil).ServeHTTP(w, r)
				})))
				first, another, again := o.send(s, chunked)
				if first.status != 201 || !again.replayed() {
					t.Errorf("the first got %+v, its repeat %+v", first, again)
				}
				s.wantProblem(another, 422, "key-reused")
			})
		})
	}
}

// TestWatchBodyAndFingerprint: a Fingerprint gets the body only, so a body that
// differs from what was sent is refused.
func TestWatchBodyAndFingerprint(t *testing.T) {
	for name, o := range outers {
		t.Run(name, func(t *testing.T) {
			framings(t, func(t *testing.T, start func(http.Handler) *service, chunked bool) {
				store := memstore.New(nil)
				s := start(httponce.WatchBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					o.read(w, r)
					httponce.Handler(store, tenant, http.HandlerFunc(created), &httponce.Options{Fingerprint: httponce.CanonicalJSON}).ServeHTTP(w, r)
				})))
				first, another, again := o.send(s, chunked)
				if o.whole {
					if first.status != 201 || !again.replayed() {
						t.Errorf("the first got %+v, its repeat %+v", first, again)
					}
					s.wantProblem(another, 422, "key-reused")
					return
				}
				for _, a := range []answer{first, another, again} {
					s.wantProblem(a, 500, "body-not-whole")
				}
			})
		})
	}
}

// TestEmptyBodies: a request without a body is valid.
func TestEmptyBodies(t *testing.T) {
	const line = "Content-Length: 5\r\n\r\nhello"
	for name, test := range map[string]struct {
		request string
		watch   bool
		problem string
	}{
		"length 0":              {strings.Replace(posted, line, "Content-Length: 0\r\n\r\n", 1), false, ""},
		"no length":             {strings.Replace(posted, line, "\r\n", 1), false, ""},
		"GET":                   {strings.NewReplacer("POST", "GET", line, "\r\n").Replace(posted), false, ""},
		"chunked":               {strings.Replace(posted, line, "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1), false, ""},
		"length 0, watched":     {strings.Replace(posted, line, "Content-Length: 0\r\n\r\n", 1), true, ""},
		"chunked, watched":      {strings.Replace(posted, line, "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1), true, ""},
		"100-continue":          {strings.Replace(posted, "Content-Length", "Expect: 100-continue\r\nContent-Length", 1), false, ""},
		"100-continue, watched": {strings.Replace(posted, "Content-Length", "Expect: 100-continue\r\nContent-Length", 1), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for form, guard := range forms {
				s := &service{t: t, store: memstore.New(nil)}
				h := guard(s, created, nil)
				if test.watch {
					h = httponce.WatchBody(h)
				}
				server := httptest.NewServer(h)
				defer server.Close()
				a := overTCP(t, server.Listener.Addr().String(), test.request).final()
				if a.problem() != test.problem || test.problem == "" && a.status != 201 {
					t.Errorf("%s: %+v", form, a)
				}
			}
		})
	}
}

// TestWatchBodyInTheWrongPlace: inside of middleware that reads the body,
// WatchBody does not see all of it. Inside of another WatchBody, it does
// nothing.
func TestWatchBodyInTheWrongPlace(t *testing.T) {
	for name, test := range map[string]struct {
		outermost func(http.Handler) http.Handler
		problems  [2]string
	}{
		"one":        {func(h http.Handler) http.Handler { return h }, [2]string{"body-not-whole", "body-not-whole"}},
		"one of two": {httponce.WatchBody, [2]string{"", "key-reused"}},
	} {
		t.Run(name, func(t *testing.T) {
			guarded := httponce.WatchBody(httponce.Handler(memstore.New(nil), tenant, http.HandlerFunc(created), nil))
			server := httptest.NewServer(test.outermost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 2)
				guarded.ServeHTTP(w, r)
			})))
			defer server.Close()
			s := &service{t: t, url: server.URL}
			for i, amount := range []string{"10.00", "20.00"} {
				if a := s.send("k", amount); a.problem() != test.problems[i] {
					t.Errorf("request %d got %+v", i, a)
				}
			}
		})
	}
}

// TestWatchBodyKeepsTheRecord: WatchBody does not change the digest of a
// request, so it can be added and removed while keys are remembered.
func TestWatchBodyKeepsTheRecord(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	guarded := forms["Handler"](s, created, nil)
	bare, watched := httptest.NewServer(guarded), httptest.NewServer(httponce.WatchBody(guarded))
	defer bare.Close()
	defer watched.Close()
	for i, urls := range [][2]string{{bare.URL, watched.URL}, {watched.URL, bare.URL}} {
		for j, url := range urls {
			s.url = url
			if a := s.send(fmt.Sprint("k", i), "10"); a.status != 201 || a.replayed() != (j == 1) {
				t.Errorf("got %+v", a)
			}
		}
	}
}

// TestWatchedBodiesOverTheLimit: bytes that middleware has read count too.
func TestWatchedBodiesOverTheLimit(t *testing.T) {
	framings(t, func(t *testing.T, start func(http.Handler) *service, chunked bool) {
		guarded := httponce.Handler(memstore.New(nil), tenant, http.HandlerFunc(created), &httponce.Options{MaxBody: 100})
		s := start(httponce.WatchBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, 60)
			guarded.ServeHTTP(w, r)
		})))
		for size, problem := range map[int]string{100: "", 101: "body-too-large"} {
			a := s.send(fmt.Sprint("k", size), strings.Repeat("x", size), func(r *http.Request) {
				if chunked {
					r.ContentLength = -1
				}
			})
			if a.problem() != problem {
				t.Errorf("%d bytes: %+v", size, a)
			}
		}
	})
}

// TestAFailedReadIsTheClients: a body that breaks off under WatchBody is not
// treated as one that was read before.
func TestAFailedReadIsTheClients(t *testing.T) {
	s := &service{t: t, store: memstore.New(nil)}
	server := httptest.NewServer(httponce.WatchBody(forms["Handler"](s, created, nil)))
	defer server.Close()
	a := cutOff(t, server.Listener.Addr().String(), strings.TrimSuffix(posted, "lo"))
	s.wantProblem(a, 400, "body-unreadable")
	s.wantRuns(0)
}
