package httponce

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// resendableBody is the body of a request, and how to get it again.
type resendableBody struct {
	first  io.ReadCloser // nil if there is no body
	get    func() (io.ReadCloser, error)
	length int64
}

func (b *resendableBody) isEmpty() bool { return b.first == nil || b.first == http.NoBody }

// isResendable reports whether the body can be sent more than once.
func (b *resendableBody) isResendable() bool { return b.isEmpty() || b.get != nil }

// setOn sets the body on the request of attempt n.
func (b *resendableBody) setOn(sent *http.Request, n int) (err error) {
	sent.Body, sent.GetBody, sent.ContentLength = b.first, b.get, b.length
	if n > 1 && !b.isEmpty() {
		sent.Body, err = b.get()
	}
	return err
}

// resendable returns the body of req. A body without GetBody is buffered if it
// has at most limit bytes.
func resendable(req *http.Request, limit int64) (resendableBody, error) {
	b := resendableBody{req.Body, req.GetBody, req.ContentLength}
	if b.isResendable() || limit < 0 || b.length > limit {
		return b, nil
	}
	// The end of the context also ends a Read that waits for the body.
	stop := context.AfterFunc(req.Context(), func() { req.Body.Close() })
	text, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	switch {
	case !stop():
		return b, fmt.Errorf("httponce: while the request's body was read: %w", context.Cause(req.Context()))
	case err != nil:
		return b, fmt.Errorf("httponce: the request's body cannot be read: %w", err)
	case int64(len(text)) > limit:
		b.first = joined{io.MultiReader(bytes.NewReader(text), req.Body), req.Body}
		return b, nil
	}
	req.Body.Close()
	return b.buffered(text, isChunked(req)), nil
}

// joined reads from a Reader and closes another value.
type joined struct {
	io.Reader
	io.Closer
}

func isChunked(req *http.Request) bool { return len(req.Trailer) > 0 || len(req.TransferEncoding) > 0 }

func (b resendableBody) buffered(text []byte, chunked bool) resendableBody {
	b.get = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	b.first, _ = b.get()
	if b.length <= 0 && !chunked {
		if b.length = int64(len(text)); b.length == 0 {
			b.first = http.NoBody // net/http takes a body of length 0 for one of unknown length
		}
	}
	return b
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
