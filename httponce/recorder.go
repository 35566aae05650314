package httponce

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// recorder is the ResponseWriter of a guarded handler. It keeps the response until it is recorded; one that is flushed
// or too large goes through to the client as it comes, unless it is held until a commit.
type recorder struct {
	mu    sync.Mutex // over what a goroutine that outlives its handler calls
	w     http.ResponseWriter
	limit int  // bytes of body that are recorded
	held  bool // nothing goes through

	header   http.Header // as the handler sees it
	status   int         // 0: not yet
	sent     http.Header // the header when the status was written
	body     []byte
	written  int64 // bytes of body
	length   int64 // that the handler has declared; -1: none
	lost     bool  // what was written is not all in body
	through  bool  // all of it so far is with w
	sniffed  int   // bytes of body that went through first: net/http takes the type from them
	hijacked bool
	nothing  bool        // the handler says that nothing happened
	over     atomic.Bool // the handler has returned, or panicked
}

var (
	_ http.Flusher  = (*recorder)(nil)
	_ http.Hijacker = (*recorder)(nil)

	errOver = errors.New("httponce: the handler has returned")
	errHeld = fmt.Errorf("httponce: nothing is sent before the commit: %w", http.ErrNotSupported)
)

// start makes a new recorder ready for a run of the handler.
func (c *recorder) start(w http.ResponseWriter, limit int, held bool, body []byte) {
	c.w, c.limit, c.held, c.header, c.body, c.length = w, limit, held, maps.Clone(w.Header()), body[:0], -1
	if c.header == nil {
		c.header = make(http.Header)
	}
}

// Header is the header of the response.
func (c *recorder) Header() http.Header { return c.header }

// Unwrap is for [http.ResponseController]: what it sets is set on the connection.
func (c *recorder) Unwrap() http.ResponseWriter { return c.w }

// WriteHeader begins the response. Informational ones are sent at once, and are not recorded.
func (c *recorder) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *recorder) writeHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httponce: WriteHeader of the status %d", status)) // as net/http does
	case c.over.Load() || c.hijacked || c.status != 0:
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		if !c.held {
			before := c.w.Header().Clone() // in case that another response than the handler's follows
			replace(c.w.Header(), c.header)
			c.w.WriteHeader(status)
			replace(c.w.Header(), before)
		}
		return
	}
	c.status, c.sent = status, c.header.Clone()
	if declared := c.sent.Get("Content-Length"); declared != "" {
		if n, err := strconv.ParseInt(declared, 10, 64); err == nil && n >= 0 {
			c.length = n
		}
	}
}

// Write writes to the body.
func (c *recorder) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admit(int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	if !c.held && !c.through && len(c.body)+len(p) > c.limit {
		c.sendSoFar()
	}
	if room := c.limit - len(c.body); c.held || !c.lost && len(p) <= room {
		c.body = append(c.body, p...)
	} else {
		c.lost = true
	}
	if c.through {
		return c.w.Write(p)
	}
	return len(p), nil
}

// admit says why n bytes cannot be written, in the words of net/http.
func (c *recorder) admit(n int64) error {
	switch {
	case c.hijacked:
		return http.ErrHijacked
	case c.over.Load():
		return errOver
	}
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	if n > 0 && !hasBody(c.status) {
		return http.ErrBodyNotAllowed
	}
	if c.written += n; c.length >= 0 && c.written > c.length {
		return http.ErrContentLength
	}
	return nil
}

func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Flush is FlushError without its error.
func (c *recorder) Flush() { _ = c.FlushError() }

// FlushError sends what was written so far, which is then no longer kept until it is recorded. It fails where nothing
// is sent before a commit.
func (c *recorder) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.hijacked:
		return http.ErrHijacked
	case c.over.Load():
		return errOver
	case c.held:
		return errHeld
	}
	c.sendSoFar()
	return http.NewResponseController(c.w).Flush()
}

// Hijack hands the connection to the handler. What is said on it is not recorded.
func (c *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over.Load():
		return nil, nil, errOver
	case c.held:
		return nil, nil, errHeld
	case c.status != 0:
		c.sendSoFar()
	}
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.hijacked, c.lost = true, true
	}
	return conn, buffered, err
}

// NotDone reports that the handler had no effect, so that the key is free again
// whatever the response is. Handlers call it before they return. w is the
// ResponseWriter that the handler received, or a wrapper of it that has Unwrap.
func NotDone(w http.ResponseWriter) {
	for {
		switch t := w.(type) {
		case *recorder:
			t.nothing = true
			return
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return
		}
	}
}

// end ends the response: what the handler's goroutines write from now on is refused.
func (c *recorder) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status == 0 && !c.hijacked {
		c.writeHeader(http.StatusOK)
	}
	c.over.Store(true)
}

// partial reports whether the body is not the one that was declared. The client was told so by the end of its connection.
func (c *recorder) partial() bool {
	return c.length >= 0 && hasBody(c.status) && c.length != int64(len(c.body))
}

// response is what is recorded.
func (c *recorder) response(headers map[string]bool) *Response {
	if c.hijacked && c.status == 0 {
		c.status = http.StatusSwitchingProtocols
	}
	r := &Response{Status: c.status, Header: c.sent, Body: c.body, NoBody: c.lost || len(c.body) > c.limit, only: headers}
	first := c.body
	if c.through {
		first = c.body[:c.sniffed]
	}
	if _, set := values(c.sent, "Content-Type"); !set && len(first) > 0 && c.sent.Get("Content-Encoding") == "" {
		r.Header = maps.Clone(c.sent) // without it, net/http finds out by itself
		r.Header["Content-Type"] = []string{http.DetectContentType(first)}
	}
	if r.NoBody {
		r.Body = nil
	}
	if r.Status < 200 {
		r.Status, r.NoBody = http.StatusOK, true
	}
	return r
}

// sendSoFar sends what there is, and lets everything else through.
func (c *recorder) sendSoFar() {
	if c.through || c.hijacked {
		return
	}
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	c.through, c.sniffed = true, len(c.body)
	replace(c.w.Header(), c.sent)
	c.w.WriteHeader(c.status)
	if len(c.body) > 0 {
		_, _ = c.w.Write(c.body) // the client may have gone
	}
}

// deliver sends the rest of the response, and its trailers.
func (c *recorder) deliver() {
	if c.hijacked {
		return
	}
	c.sendSoFar()
	for name, values := range c.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || declares(c.sent, name) {
			c.w.Header()[name] = values
		}
	}
}

// declares reports whether a header announces a trailer.
func declares(header http.Header, trailer string) bool {
	for _, list := range header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(name)) == trailer {
				return true
			}
		}
	}
	return false
}

// replace makes one header like another.
func replace(header, like http.Header) {
	for name := range header {
		if _, kept := like[name]; !kept {
			delete(header, name)
		}
	}
	maps.Copy(header, like)
}
