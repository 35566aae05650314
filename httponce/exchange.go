package httponce

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/gowebpki/jcs"
)

// exchange is a guarded request on its way.
type exchange struct {
	*settings
	w    http.ResponseWriter
	r    *http.Request
	key  once.Key
	body []byte // of the request
	mark []byte // digest of what repeats must have in common
	bufs *buffers
	rec  recorder
	ran  bool // the handler has run, or panicked
	rep  once.Report
	wait time.Duration // of a caller over its limits
}

// buffers are used again by later requests, unless they have grown out of proportion.
type buffers struct{ request, response []byte }

var pool = sync.Pool{New: func() any { return new(buffers) }}

const keepBuffer = 64 << 10

func newExchange(g *settings, w http.ResponseWriter, r *http.Request) *exchange {
	return &exchange{settings: g, w: w, r: r, bufs: pool.Get().(*buffers)}
}

// close ends the exchange. A handler that panicked may still be read from and written to by what it has started, so its
// buffers are left to it.
func (x *exchange) close() {
	panicked := x.ran && !x.rec.over
	if x.rec.over = true; panicked {
		return
	}
	if x.rec.body != nil {
		x.bufs.response = x.rec.body
	}
	if cap(x.bufs.request) <= keepBuffer && cap(x.bufs.response) <= keepBuffer {
		pool.Put(x.bufs)
	}
}

func (x *exchange) fail(p problem) { p.send(x.w, x.Docs) }

func (x *exchange) log(text string, err error) {
	x.store.Options().Logger.ErrorContext(x.r.Context(), "httponce: "+text, "key", x.key, "method", x.r.Method, "error", err)
}

// read reads all of the request. If it cannot be guarded, it is answered.
func (x *exchange) read() bool {
	id, ok := x.readKey()
	if !ok {
		return false
	}
	scope, err := x.caller(x.r)
	x.key = once.Key{Scope: scope, Operation: x.Operation, ID: id}
	switch {
	case err != nil || scope == "":
		x.fail(problemCaller)
		return false
	case x.key.Validate() != nil:
		x.log("the caller has an impossible name", x.key.Validate())
		x.fail(problemSetUp)
		return false
	}
	return x.readBody() && x.digest()
}

func (x *exchange) readKey() (id string, ok bool) {
	values, sent := x.r.Header[KeyHeader]
	if !sent {
		x.fail(problemMissing)
		return "", false
	}
	id, err := parseKey(values)
	if err == nil && x.CheckKey != nil {
		err = x.CheckKey(id)
	}
	if err != nil {
		x.fail(problemMalformed.because(err.Error()))
	}
	return id, err == nil
}

func (x *exchange) readBody() bool {
	if x.r.ContentLength > x.MaxBody {
		return x.tooLarge()
	}
	if x.r.Body == nil || x.r.Body == http.NoBody {
		return true
	}
	err := x.readAll()
	switch {
	case err != nil:
		x.fail(problemBody)
		return false
	case int64(len(x.body)) > x.MaxBody:
		x.w.Header().Set("Connection", "close") // instead of reading the rest
		return x.tooLarge()
	}
	return true
}

// readAll reads until the body ends, or is too large by a byte. How long it was said to be is a hint: something in between
// may have unpacked it.
func (x *exchange) readAll() error {
	b := slices.Grow(x.bufs.request[:0], int(max(x.r.ContentLength, 0))+1)
	defer func() { x.body, x.bufs.request = b, b }()
	for int64(len(b)) <= x.MaxBody {
		if len(b) == cap(b) {
			b = slices.Grow(b, max(len(b), 512))
		}
		n, err := x.r.Body.Read(b[len(b):min(int64(cap(b)), x.MaxBody+1)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) tooLarge() bool {
	x.fail(problemTooLarge.because(fmt.Sprintf("At most %d bytes are taken. Nothing was done.", x.MaxBody)))
	return false
}

// digest is over all that a request says, each part with its length.
func (x *exchange) digest() bool {
	same := x.body
	if x.Fingerprint != nil {
		var err error
		if same, err = x.Fingerprint(x.r, x.body); err != nil {
			x.fail(problemBody.because(err.Error()))
			return false
		}
	}
	b := make([]byte, 0, 256)
	for _, part := range []string{x.r.Method, x.r.URL.EscapedPath(), x.r.URL.RawQuery} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	h := sha256.New()
	h.Write(b)
	h.Write(same)
	x.mark = h.Sum(b[:0])
	return true
}

// CanonicalJSON is a Fingerprint for JSON (RFC 8785): the order of members, spaces, and how numbers and strings are
// written make no difference. A body that is no JSON is compared as it is.
func CanonicalJSON(_ *http.Request, body []byte) ([]byte, error) {
	if same, err := jcs.Transform(body); err == nil {
		return same, nil
	}
	return body, nil
}

// RefuseGuessable is a CheckKey that asks for at least 16 characters with some variety, so that nobody finds out by
// trying what others have sent, where callers are not kept apart.
func RefuseGuessable(key string) error {
	seen := make(map[rune]bool)
	for _, c := range key {
		seen[c] = true
	}
	if len(key) < 16 || len(seen) < 8 {
		return errors.New("the key can be guessed: use a random one of at least 16 characters, such as a UUID")
	}
	return nil
}

// work is the unit of work that the request asks for.
func (x *exchange) work(mark []byte) once.Work[*Response] {
	return x.op.For(x.key.ID).In(x.key.Scope).Input(mark).Report(&x.rep)
}

// withMark tries marks that older secrets have made where the one of now does not fit.
func withMark(x *exchange, try func(mark []byte) (*Response, error)) (answer *Response, err error) {
	if x.limiter != nil {
		leave, err := x.limited(x.r.Context())
		if err != nil {
			return nil, err
		}
		defer func() { leave(!x.ran) }()
	}
	if x.Ring == nil {
		return try(x.mark)
	}
	for _, s := range x.Ring.secrets {
		if answer, err = try(s.mark(x.mark)); !errors.Is(err, once.ErrMismatch) {
			break
		}
	}
	return answer, err
}

// begin makes ready for a run of the handler.
func (x *exchange) begin(held bool) {
	x.rec.start(x.w, x.MaxResponse, held, x.bufs.response)
}

// request is the request as the handler gets it.
func (x *exchange) request(ctx context.Context) *http.Request {
	r := x.r.WithContext(ctx)
	r.Body = http.NoBody
	if len(x.body) > 0 {
		r.Body = &content{Reader: *bytes.NewReader(x.body)}
	}
	return r
}

// content is a body that was read already.
type content struct {
	bytes.Reader
	closed bool
}

var _ io.ReadCloser = (*content)(nil)

// Read reads.
func (c *content) Read(p []byte) (int, error) {
	if c.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.Reader.Read(p)
}

// Close ends the reading.
func (c *content) Close() error {
	c.closed = true
	return nil
}
