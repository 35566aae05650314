package httponce

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// handlerRun is the current run of a handler: the request and the
// ResponseWriter that the handler gets. The zero value has not started.
type handlerRun struct {
	rec   *recorder     // nil before the first run
	buf   *[]byte       // for the body of the response, nil before a run
	outer *http.Request // the request that the guard got
	req   *http.Request
	body  *bufferedBody // the body of req; nil if it is empty or was not read
}

// responses are buffers for the bodies of responses.
var responses = sync.Pool{New: func() any { return new([]byte) }}

// start prepares a new run, which writes its response to w. If untilCommit is
// set, nothing is sent before deliver.
func (n *handlerRun) start(w http.ResponseWriter, limit int, untilCommit bool) {
	if n.rec != nil {
		if panicked := !n.rec.over.Swap(true); panicked { // a speculative run that was discarded
			n.buf = nil // its goroutines may still write to it
		}
	}
	n.rec = new(recorder) // goroutines of a previous run may still hold its own
	if n.buf == nil {
		n.buf = responses.Get().(*[]byte)
	}
	n.rec.start(w, limit, untilCommit, *n.buf)
}

// request returns the request for the handler, with a body that was buffered.
func (n *handlerRun) request(ctx context.Context, r *http.Request, from *requestBody) *http.Request {
	n.endRequest()
	n.outer, n.req = r, r.WithContext(ctx)
	if !from.taken { // like a request that is not guarded
		return n.req
	}
	n.req.Body = http.NoBody
	if body := from.bytes(); len(body) > 0 {
		n.body = &bufferedBody{left: body}
		n.req.Body = n.body
	}
	return n.req
}

// endRequest does what net/http does when a handler has returned, and cannot do
// for a copy of its request: it closes the body and removes the temporary files
// of a multipart form that the handler has parsed.
func (n *handlerRun) endRequest() {
	if n.req == nil {
		return
	}
	if n.body != nil { // the handler may have replaced it in the request
		_ = n.body.Close()
		n.body = nil
	}
	if form := n.req.MultipartForm; form != nil && n.outer.MultipartForm == nil {
		_ = form.RemoveAll()
	}
	n.req = nil
}

// close ends the run and releases its buffer. It leaves the buffer to a handler
// that panicked, because its goroutines may still write a response.
func (n *handlerRun) close() {
	if n.rec == nil {
		return
	}
	if panicked := !n.rec.over.Swap(true); !panicked && cap(n.rec.body) <= keepBuffer {
		*n.buf = n.rec.body
		responses.Put(n.buf)
	}
}

// bufferedBody is a body that was read before. Its buffer is reused by another
// request, so Close ends all reading.
type bufferedBody struct {
	mu     sync.Mutex
	left   []byte
	closed bool
}

var _ io.ReadCloser = (*bufferedBody)(nil)

func (b *bufferedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(b.left) == 0:
		return 0, io.EOF
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

func (b *bufferedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.closed = nil, true
	return nil
}
