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

// recorder is the ResponseWriter of a guarded handler. It buffers the response
// until it is recorded. A response that is flushed or too large is streamed,
// unless nothing may be sent before a commit.
type recorder struct {
	mu          sync.Mutex // goroutines that outlive their handler may still write
	w           http.ResponseWriter
	limit       int  // bytes of body that are recorded
	untilCommit bool // nothing is sent before deliver

	outer      http.Header // what outer handlers have set; nil if nothing
	header     http.Header // as the handler sees it
	status     int         // 0: not yet written
	sent       []field     // the header when the status was written
	own        []field     // the part of sent that the handler has set
	body       []byte
	written    int64 // bytes of body
	length     int64 // the Content-Length that the handler has set; -1: none
	delivery   delivery
	incomplete bool        // body lacks a part of the response
	sniffed    int         // bytes of body in the first write to w, from which net/http detects the type
	informed   bool        // an informational response was sent
	notDone    atomic.Bool // the handler had no effect, see NotDone
	over       atomic.Bool // the handler has returned, or panicked
}

// delivery is how a response reaches the client. It does not change after end.
type delivery int

const (
	buffered delivery = iota // deliver sends everything
	streamed                 // everything so far has been sent
	hijacked                 // the handler has taken over the connection
)

var (
	_ http.Flusher  = (*recorder)(nil)
	_ http.Hijacker = (*recorder)(nil)

	errOver         = errors.New("httponce: the handler has returned")
	errBeforeCommit = fmt.Errorf("httponce: nothing is sent before the commit: %w", http.ErrNotSupported)
)

// start prepares a new recorder for a run of the handler.
func (c *recorder) start(w http.ResponseWriter, limit int, untilCommit bool, body []byte) {
	c.w, c.limit, c.untilCommit, c.header, c.body, c.length = w, limit, untilCommit, maps.Clone(w.Header()), body[:0], -1
	if c.header == nil {
		c.header = make(http.Header)
	}
	if len(c.header) > 0 {
		c.outer = maps.Clone(c.header)
	}
}

// Header returns the header of the response.
func (c *recorder) Header() http.Header { return c.header }

// Unwrap lets [http.ResponseController] set deadlines of the connection.
func (c *recorder) Unwrap() http.ResponseWriter { return c.w }

// WriteHeader starts the response. Informational responses are sent at once and
// not recorded.
func (c *recorder) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *recorder) writeHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httponce: WriteHeader of the status %d", status)) // as net/http does
	case c.over.Load() || c.delivery == hijacked || c.status != 0:
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		if !c.untilCommit {
			before := fieldsOf(c.w.Header()) // another response than the handler's may follow
			replace(c.w.Header(), fieldsOf(c.header))
			c.w.WriteHeader(status)
			replace(c.w.Header(), before)
			c.informed = true
		}
		return
	}
	c.takeNotDone()
	c.status, c.sent = status, fieldsOf(c.header)
	c.own = ownFields(c.sent, c.header, c.outer)
	if declared := c.header.Get("Content-Length"); declared != "" {
		if n, err := strconv.ParseInt(declared, 10, 64); err == nil && n >= 0 {
			c.length = n
		}
	}
}

// Write appends to the body.
func (c *recorder) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admit(int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	if !c.untilCommit && c.delivery == buffered && len(c.body)+len(p) > c.limit {
		c.stream()
	}
	if room := c.limit - len(c.body); c.untilCommit || !c.incomplete && len(p) <= room {
		c.body = append(c.body, p...)
	} else {
		c.incomplete = true
	}
	if c.delivery == streamed {
		return c.w.Write(p)
	}
	return len(p), nil
}

// admit returns the error of net/http if n more bytes cannot be written.
func (c *recorder) admit(n int64) error {
	switch {
	case c.delivery == hijacked:
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

// Flush calls FlushError and ignores its error.
func (c *recorder) Flush() { _ = c.FlushError() }

// FlushError sends what was written so far and streams the rest of the response.
// It fails if nothing may be sent before a commit.
func (c *recorder) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.delivery == hijacked:
		return http.ErrHijacked
	case c.over.Load():
		return errOver
	case c.untilCommit:
		return errBeforeCommit
	}
	c.stream()
	return http.NewResponseController(c.w).Flush()
}

// Hijack gives the connection to the handler. Its traffic is not recorded.
func (c *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over.Load():
		return nil, nil, errOver
	case c.untilCommit:
		return nil, nil, errBeforeCommit
	case c.status != 0:
		c.stream()
	}
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.delivery, c.incomplete = hijacked, true
	}
	return conn, buffered, err
}

// end ends the response. Later writes of the handler's goroutines fail.
func (c *recorder) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status == 0 && c.delivery != hijacked {
		c.writeHeader(http.StatusOK)
	}
	c.takeNotDone()
	c.over.Store(true)
}

// isPartial reports whether the body has another length than the handler has
// declared. The client notices because its connection is closed.
func (c *recorder) isPartial() bool {
	return c.length >= 0 && hasBody(c.status) && c.length != int64(len(c.body))
}

// response returns the response to record.
func (c *recorder) response(headers map[string]bool) *recording {
	if c.delivery == hijacked && c.status == 0 {
		c.status = http.StatusSwitchingProtocols
	}
	r := &recording{status: c.status, head: c.own, body: c.body, noBody: c.incomplete || len(c.body) > c.limit, only: headers}
	first := c.body
	if c.delivery != buffered {
		first = c.body[:c.sniffed]
	}
	encoding := find(c.own, "Content-Encoding")
	if !has(c.own, "Content-Type") && (len(encoding) == 0 || encoding[0] == "") {
		r.setType(first)
	}
	if r.noBody {
		r.body = nil
	}
	if r.status < 200 {
		r.status, r.noBody = http.StatusOK, true
	}
	return r
}

// stream sends what was written so far. Later writes are sent at once.
func (c *recorder) stream() {
	if c.delivery != buffered {
		return
	}
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	c.delivery, c.sniffed = streamed, len(c.body)
	c.send()
}

// send sends the header and the body.
func (c *recorder) send() {
	replace(c.w.Header(), c.sent)
	if len(c.body) > 0 && has(c.sent, "Content-Encoding") && !has(c.own, "Content-Encoding") && !has(c.sent, "Content-Type") {
		// An outer handler compresses. It would detect the type in the first
		// Write, which comes after WriteHeader here.
		c.w.Header().Set("Content-Type", http.DetectContentType(c.body))
	}
	c.w.WriteHeader(c.status)
	if len(c.body) > 0 {
		_, _ = c.w.Write(c.body) // the client may have disconnected
	}
}

// deliver sends the rest of the response, and its trailers. It comes after end
// and changes no field, so it does not hold the mutex: a goroutine that outlives
// its handler gets its error at once, even if the client reads slowly.
func (c *recorder) deliver() {
	switch c.delivery {
	case hijacked:
		return
	case buffered:
		c.send()
	}
	for name, values := range c.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || declares(c.sent, name) {
			c.w.Header()[name] = values
		}
	}
}

// declares reports whether a header declares a trailer.
func declares(fields []field, trailer string) bool {
	for _, list := range find(fields, "Trailer") {
		for name := range strings.SplitSeq(list, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(name)) == trailer {
				return true
			}
		}
	}
	return false
}

// replace changes header to consist of fields.
func replace(header http.Header, fields []field) {
	clear(header)
	for _, f := range fields {
		header[f.spelled] = f.values
	}
}
