package httponce

import (
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
	rec  *recorder     // of the run of the handler, nil before it
	req  *http.Request // as that run got it
	one  recorder      // of the first run, which is nearly always the only one
	ran  bool          // the handler has run, or panicked
	inTx bool          // of HandlerTx
	owns bool          // Handler: the key was claimed; HandlerTx: the handler has run
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

// close ends the exchange. What a handler that panicked has started may be writing at this moment, and to a client that
// does not read: that is not waited for, and the buffers are left to it.
func (x *exchange) close() {
	x.endRequest()
	if x.rec != nil {
		if panicked := !x.rec.over.Swap(true); panicked {
			return
		}
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
	scope, err := x.caller(x.r)
	if err != nil || scope == "" {
		x.fail(problemCaller)
		return false
	}
	id, ok := x.readKey()
	if !ok {
		return false
	}
	if x.key = (once.Key{Scope: scope, Operation: x.Operation, ID: id}); x.key.Validate() != nil {
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
		return x.tooLarge(x.MaxBody)
	}
	if x.r.Body == nil || x.r.Body == http.NoBody {
		return true
	}
	err := x.readAll()
	switch {
	case err != nil:
		return x.unreadable(err)
	case int64(len(x.body)) > x.MaxBody:
		x.w.Header().Set("Connection", "close") // instead of reading the rest
		return x.tooLarge(x.MaxBody)
	case x.readBefore():
		x.log("the body was read before it could be compared: let the Caller and outer handlers leave it alone, or put it back", nil)
		x.fail(problemSetUp)
		return false
	}
	return true
}

// unreadable answers where reading failed, perhaps at a lower limit that somebody outside has set.
func (x *exchange) unreadable(err error) bool {
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		return x.tooLarge(over.Limit)
	}
	x.fail(problemBody)
	return false
}

// readBefore reports whether somebody has taken the body. Without it, other requests with this key would pass for the same.
func (x *exchange) readBefore() bool {
	return len(x.body) == 0 && (x.r.ContentLength > 0 || len(x.r.PostForm) > 0 || x.r.MultipartForm != nil)
}

// readAll reads until the body ends, or is too large by a byte. How long it was said to be is a hint: something in between
// may have unpacked it, and who announces much and sends nothing gets no memory for it.
func (x *exchange) readAll() error {
	b := slices.Grow(x.bufs.request[:0], int(min(max(x.r.ContentLength, 0)+1, keepBuffer)))
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

func (x *exchange) tooLarge(limit int64) bool {
	x.fail(problemTooLarge.because(fmt.Sprintf("At most %d bytes are taken. Nothing was done.", limit)))
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
	if x.limiter != nil || x.Admit != nil {
		leave, refused := x.limited(x.r.Context())
		if refused != nil {
			return nil, refused
		}
		defer func() { leave(err) }()
	}
	if x.Ring == nil {
		return try(x.mark)
	}
	for _, mark := range x.Ring.marks(x.mark) {
		if answer, err = try(mark); !errors.Is(err, once.ErrMismatch) {
			break
		}
	}
	return answer, err
}

// begin makes ready for a run of the handler.
func (x *exchange) begin(held bool) {
	if x.rec == nil {
		x.rec = &x.one
	} else { // what the run before has started may still hold the other
		x.rec = new(recorder)
	}
	x.rec.start(x.w, x.MaxResponse, held, x.bufs.response)
}

// request is the request as the handler gets it.
func (x *exchange) request(ctx context.Context) *http.Request {
	x.endRequest()
	x.req = x.r.WithContext(ctx)
	x.req.Body = http.NoBody
	if len(x.body) > 0 {
		x.req.Body = &content{left: x.body}
	}
	return x.req
}

// endRequest does what net/http does when a handler has returned, and cannot do for a copy of its request: the body is
// closed, and temporary files of its form are removed.
func (x *exchange) endRequest() {
	if x.req == nil {
		return
	}
	if body, ours := x.req.Body.(*content); ours {
		_ = body.Close()
	}
	if x.req.MultipartForm != nil && x.r.MultipartForm == nil {
		_ = x.req.MultipartForm.RemoveAll()
	}
}

// content is a body that was read already. It lies in a buffer that another request gets next, so nothing is read from it
// once it is closed.
type content struct {
	mu     sync.Mutex
	left   []byte
	closed bool
}

var _ io.ReadCloser = (*content)(nil)

// Read reads.
func (c *content) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(c.left) == 0:
		return 0, io.EOF
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// Close ends the reading.
func (c *content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.closed = nil, true
	return nil
}
