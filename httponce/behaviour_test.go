package httponce_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// notes records what a handler sees of its ResponseWriter and its request.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.all, "\n")
}

const posted = "POST /p?a=1 HTTP/1.1\r\nHost: h\r\nTenant: acme\r\nIdempotency-Key: k\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"

// behaviour is something that handlers do. It must look the same with and
// without the guard.
type behaviour struct {
	handle  func(w http.ResponseWriter, r *http.Request, n *notes)
	outside func(http.Handler) http.Handler
	request string // default: posted
	only1   bool   // HTTP/1.1 only
	repeat  string // what a repeat gets: the name of a problem; default: what the first got, as far as it is recorded. "none": it is not asked
}

var behaviours = map[string]behaviour{
	"nothing at all": {handle: func(http.ResponseWriter, *http.Request, *notes) {}},
	"implicit 200": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		written, err := fmt.Fprint(w, "hello")
		n.add("%d %v", written, err)
	}},
	"superfluous WriteHeader": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.WriteHeader(202)
		w.WriteHeader(400)
		fmt.Fprint(w, "x")
		w.WriteHeader(404)
	}},
	"headers after WriteHeader": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Location", "/first")
		w.WriteHeader(201)
		w.Header().Set("Location", "/second")
		w.Header().Set("Late", "x")
	}},
	"sniffed": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		fmt.Fprint(w, "<ht")
		fmt.Fprint(w, "ml><body>")
	}},
	"sniffed at the first flush": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		fmt.Fprint(w, "<ht")
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "ml><body>")
	}},
	"flushed before anything": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "<html><body>")
	}},
	"no content type": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "<html>")
	}},
	"declared, too long": {repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Content-Length", "10")
		_, err := fmt.Fprint(w, "short")
		n.add("%v", err)
	}},
	"declared, too short": {only1: true, repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Content-Length", "3")
		_, err := fmt.Fprint(w, "too long")
		n.add("%v", err)
	}},
	"declared, no number": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Content-Length", "ten")
		_, err := fmt.Fprint(w, "body")
		n.add("%v", err)
	}},
	"204 with a body": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.WriteHeader(204)
		_, err := fmt.Fprint(w, "x")
		n.add("%v", err)
	}},
	"204 with an empty write": {only1: true, handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.WriteHeader(204)
		_, err := w.Write(nil)
		n.add("%v", err)
	}},
	"304 with a body": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Etag", `"1"`)
		w.WriteHeader(304)
		_, err := fmt.Fprint(w, "x")
		n.add("%v", err)
	}},
	"early hints": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(103)
		w.Header().Add("Link", "</more.css>; rel=preload")
		w.WriteHeader(103)
		w.Header().Del("Link")
		w.Header().Set("Etag", `"1"`)
		fmt.Fprint(w, "page")
	}},
	"flush, then more": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		fmt.Fprint(w, "one ")
		n.add("%v", http.NewResponseController(w).Flush())
		fmt.Fprint(w, "two ")
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "three")
	}},
	"declared trailers": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Trailer", "Sum, X-Two")
		w.Header().Add("Trailer", "Never")
		fmt.Fprint(w, "body")
		w.Header().Set("Sum", "42")
		w.Header().Set("X-Two", "2")
		w.Header().Set("Not-Declared", "x")
	}},
	"trailers by prefix, flushed": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		fmt.Fprint(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"Sum", "42")
	}},
	"trailers by prefix, not flushed": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		fmt.Fprint(w, "body")
		w.Header().Set(http.TrailerPrefix+"Sum", "42")
	}},
	"hijacked": {only1: true, repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			n.add("%v", err)
			return
		}
		defer conn.Close()
		fmt.Fprint(buffered, "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nhi")
		buffered.Flush()
		_, err = fmt.Fprint(w, "more")
		n.add("%v", err)
	}},
	"hijacked after the status": {only1: true, repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Content-Length", "2")
		w.WriteHeader(200)
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			n.add("%v", err)
			return
		}
		defer conn.Close()
		fmt.Fprint(buffered, "hi")
		buffered.Flush()
	}},
	"controls": {handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		c := http.NewResponseController(w)
		n.add("%v %v %v", c.SetReadDeadline(time.Now().Add(time.Minute)), c.SetWriteDeadline(time.Now().Add(time.Minute)), c.EnableFullDuplex())
	}},
	"a write deadline that has passed": {only1: true, repeat: "none", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		n.add("%v", http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Minute)))
		w.WriteHeader(204)
	}},
	"middleware outside": {outside: wrapped, handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		n.add("%v", http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		n.add("%q", w.Header().Get("Outer"))
		w.Header().Del("Outer")
		fmt.Fprint(w, "x")
		n.add("%v", http.NewResponseController(w).Flush())
	}},
	"middleware inside": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		wrapped(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.add("%v", http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
			fmt.Fprint(w, "x")
			n.add("%v", http.NewResponseController(w).Flush())
		})).ServeHTTP(w, r)
	}},
	"a big copy": {repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		copied, err := io.Copy(w, io.LimitReader(endless{}, 1<<20))
		n.add("%d %v", copied, err)
	}},
	"a big copy of declared length": {repeat: "answer-not-kept", handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		w.Header().Set("Content-Length", "1048576")
		copied, err := io.Copy(w, io.LimitReader(endless{}, 1<<20))
		n.add("%d %v", copied, err)
	}},
	"http.ServeContent": {handle: func(w http.ResponseWriter, r *http.Request, _ *notes) {
		http.ServeContent(w, r, "a.css", time.Unix(1e9, 0), strings.NewReader("body{}"))
	}},
	"http.Redirect": {handle: func(w http.ResponseWriter, r *http.Request, _ *notes) {
		http.Redirect(w, r, "/there", http.StatusSeeOther)
	}},
	"http.Error": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Etag", "x")
		http.Error(w, "no", http.StatusBadRequest)
	}},
	"aborted": {only1: true, repeat: "outcome-unknown", handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.WriteHeader(201)
		panic(http.ErrAbortHandler)
	}},
	"aborted after a flush": {only1: true, repeat: "outcome-unknown", handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		fmt.Fprint(w, "some")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}},
	"an impossible status": {only1: true, repeat: "outcome-unknown", handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.WriteHeader(0)
	}},
	"Connection: close": {only1: true, repeat: "none", handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "bye")
	}, request: strings.Replace(posted, "Connection: close\r\n", "", 1)},
	"no Date": {handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) { w.Header()["Date"] = nil }},
	"a header with line breaks": {only1: true, handle: func(w http.ResponseWriter, _ *http.Request, _ *notes) {
		w.Header().Set("Location", "/a\r\nSet-Cookie: evil=1\n\r\n<script>")
		w.WriteHeader(201)
	}},
	"100-continue": {only1: true, handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, err := io.ReadAll(r.Body)
		n.add("%q %v", b, err)
	}, request: strings.Replace(posted, "Content-Length", "Expect: 100-continue\r\nContent-Length", 1)},
	"request trailers": {only1: true, handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, err := io.ReadAll(r.Body)
		n.add("%q %v %v %d", b, err, r.Trailer, r.ContentLength)
	}, request: strings.Replace(posted, "Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n5\r\nhello\r\n0\r\nSum: 42\r\n\r\n", 1)},
	"reading after Close": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		r.Body.Close()
		_, err := r.Body.Read(make([]byte, 1))
		_, copied := io.Copy(io.Discard, r.Body)
		n.add("%v, %v", err != nil, copied != nil)
	}},
	"reading past the end": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, _ := io.ReadAll(r.Body)
		_, err := r.Body.Read(make([]byte, 1))
		n.add("%s %v", b, err)
	}},
	"no body": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, err := io.ReadAll(r.Body)
		n.add("%q %v %d", b, err, r.ContentLength)
	}, request: strings.Replace(posted, "Content-Length: 5\r\n\r\nhello", "Content-Length: 0\r\n\r\n", 1)},
	"a form": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		n.add("%q %q %v", r.FormValue("b"), r.FormValue("a"), r.PostForm)
	}, request: strings.Replace(posted, "Content-Length: 5\r\n\r\nhello", "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n\r\nb=two", 1)},
	"a multipart form": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		file, head, err := r.FormFile("f")
		if err != nil {
			n.add("%v", err)
			return
		}
		b, err := io.ReadAll(file)
		n.add("%s %q %v", head.Filename, b, err)
	}, request: multipartRequest()},
	"MaxBytesHandler outside": {outside: func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 10) }, handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, err := io.ReadAll(r.Body)
		n.add("%q %v", b, err)
	}},
	"MaxBytesReader inside": {handle: func(w http.ResponseWriter, r *http.Request, n *notes) {
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 3))
		var over *http.MaxBytesError
		n.add("%q %v", b, errors.As(err, &over))
		w.WriteHeader(413)
	}},
	"TimeoutHandler outside": {outside: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "late") }, handle: func(w http.ResponseWriter, _ *http.Request, n *notes) {
		n.add("%v", http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		fmt.Fprint(w, "in time")
	}},
	"TimeoutHandler inside": {handle: func(w http.ResponseWriter, r *http.Request, _ *notes) {
		http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "in time") }), time.Minute, "late").ServeHTTP(w, r)
	}},
	"TimeoutHandler inside, too late": {repeat: "outcome-unknown", handle: func(w http.ResponseWriter, r *http.Request, _ *notes) {
		http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), time.Millisecond, "late").ServeHTTP(w, r)
	}},
	"path values": {outside: func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /{name}", h)
		return mux
	}, handle: func(_ http.ResponseWriter, r *http.Request, n *notes) {
		n.add("%s %s %s %s", r.PathValue("name"), r.Pattern, r.RequestURI, r.RemoteAddr[:4])
	}},
}

func multipartRequest() string {
	body := "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x.txt\"\r\n\r\nthe file\r\n--b--\r\n"
	return strings.Replace(posted, "Content-Length: 5\r\n\r\nhello", fmt.Sprintf("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s", len(body), body), 1)
}

// endless is text without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'e'
	}
	return len(p), nil
}

// wrapped is middleware of the usual kind.
func wrapped(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Outer", "yes")
		h.ServeHTTP(&wrapper{w}, r)
	})
}

type wrapper struct{ http.ResponseWriter }

func (w *wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }
