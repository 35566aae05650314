package httponce

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
)

// exchange is a guarded request on its way.
type exchange struct {
	*settings
	w       http.ResponseWriter
	r       *http.Request
	key     once.Key
	held    *heldBody         // has the body; nil if nothing was read of it
	size    int               // of the body
	wasRead bool              // the body
	sum     [sha256.Size]byte // digest of the body
	mark    []byte            // digest of what repeats must have in common
	rec     *recorder         // of the run of the handler, nil before it
	req     *http.Request     // as that run got it
	given   *content          // its body, unless that is empty or was not read
	one     recorder          // of the first run, which is nearly always the only one
	buf     *[]byte           // for the response, nil before a run
	ran     bool              // the handler has run, or panicked
	inTx    bool              // of HandlerTx
	owns    bool              // Handler: the key was claimed; HandlerTx: the handler has run
	rep     once.Report
	wait    time.Duration     // of a caller over its limits
	exit    func(unused bool) // leaves the limits; nil if the request is not counted in them
}

// responses are buffers for the bodies of responses. They are used again,
// unless they have grown out of proportion.
var responses = sync.Pool{New: func() any { return new([]byte) }}

func newExchange(g *settings, w http.ResponseWriter, r *http.Request) *exchange {
	return &exchange{settings: g, w: w, r: r}
}

// close ends the exchange. What a handler that panicked has started may still
// write a response, and to a client that does not read: that is not waited for,
// and the buffer of the response is left to it. The body of the request is not,
// because nothing is read from it once it is closed.
func (x *exchange) close() {
	x.endRequest()
	x.leaveLimits(true)
	if x.held != nil {
		x.bodies.leave(x.key, x.held)
		x.held = nil
	}
	if x.rec == nil {
		return
	}
	if panicked := !x.rec.over.Swap(true); !panicked && cap(x.rec.body) <= keepBuffer {
		*x.buf = x.rec.body
		responses.Put(x.buf)
	}
}

func (x *exchange) fail(p problem) { p.send(x.w, x.Docs) }

// log logs an error. about says what it is about, which may be logged often.
func (x *exchange) log(text string, about string, err error) {
	x.store.Options().Logger.ErrorContext(x.r.Context(), "httponce: "+text, logs.Spaced(about), "key", x.key, "method", x.r.Method, "error", err)
}

// read reads all of the request. If it cannot be guarded, it is answered, by
// next if that is what [Options.FailOpen] says.
func (x *exchange) read(next http.Handler) bool {
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
		x.log("the caller has an impossible name", "", x.key.Validate())
		x.fail(problemSetUp)
		return false
	}
	if err := x.enterLimits(x.r.Context()); err != nil {
		x.refuse(err, next)
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

// digest marks the request by all that repeats must have in common, each part
// with its length.
func (x *exchange) digest() bool {
	sum := x.sum
	if x.Fingerprint != nil {
		same, err := x.Fingerprint(x.r, x.body())
		if err != nil {
			x.fail(problemBody.because(err.Error()))
			return false
		}
		sum = sha256.Sum256(same)
	}
	b := make([]byte, 0, 256)
	for _, part := range []string{x.r.Method, x.r.URL.EscapedPath(), x.r.URL.RawQuery} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	mark := sha256.Sum256(append(b, sum[:]...))
	x.mark = mark[:]
	return true
}

// RefuseGuessable is a CheckKey that requires at least 16 characters with some
// variety. Use it where callers are not kept apart, so that nobody can guess
// the keys of others.
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

// enter takes a place within the limits, and asks Options.Admit. leave gives the
// place back, and says how the request ended.
func (x *exchange) enter() (leave func(error), err error) {
	left, err := x.admit(x.r.Context())
	if err != nil {
		x.leaveLimits(x.unused(err))
		return nil, err
	}
	return func(err error) {
		left(err)
		x.leaveLimits(x.unused(err))
	}, nil
}

// begin makes ready for a run of the handler.
func (x *exchange) begin(held bool) {
	if x.rec == nil {
		x.rec = &x.one
	} else { // what the run before has started may still hold the other
		if panicked := !x.rec.over.Swap(true); panicked { // a speculative run, for nothing
			x.buf = nil // it may still be written to
		}
		x.rec = new(recorder)
	}
	if x.buf == nil {
		x.buf = responses.Get().(*[]byte)
	}
	x.rec.start(x.w, x.MaxResponse, held, *x.buf)
}

// request is the request as the handler gets it.
func (x *exchange) request(ctx context.Context) *http.Request {
	x.endRequest()
	x.req = x.r.WithContext(ctx)
	if !x.wasRead { // as for a request that is not guarded
		return x.req
	}
	x.req.Body = http.NoBody
	if body := x.body(); len(body) > 0 {
		x.given = &content{left: body}
		x.req.Body = x.given
	}
	return x.req
}

// endRequest does what net/http does when a handler has returned, and cannot do for a copy of its request: the body is
// closed, and temporary files of its form are removed.
func (x *exchange) endRequest() {
	if x.req == nil {
		return
	}
	if x.given != nil { // the handler may have put another in its place
		_ = x.given.Close()
		x.given = nil
	}
	if x.req.MultipartForm != nil && x.r.MultipartForm == nil {
		_ = x.req.MultipartForm.RemoveAll()
	}
}

// content is a body that was read already. It lies in a buffer that another
// request gets next, so nothing is read from it once it is closed.
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
