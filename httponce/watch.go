package httponce

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"sync"
)

// WatchBody lets the guards inside next compare requests by the bodies that
// were sent, even if handlers in between have read them in part or whole. Place
// it outside everything that reads bodies, and inside everything that
// decompresses them or sets Idempotency-Key. Without it, a guard refuses a body
// that it finds incomplete, but cannot tell whether a body of unknown length
// (chunked, or HTTP/2 without Content-Length) lacks a part.
//
// WatchBody changes nothing else. It costs a SHA-256 of each body that has an
// Idempotency-Key. A guard with a Fingerprint still refuses a body that differs
// from what was sent, because Fingerprint receives the body as the guard finds
// it.
func WatchBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, has := r.Header[KeyHeader]; !has || watchedBodyOf(r) != nil {
			next.ServeHTTP(w, r)
			return
		}
		watched := &watchedBody{from: r.Body, announced: r.ContentLength, hash: sha256.New()}
		inner := r.WithContext(context.WithValue(r.Context(), watchedKey{}, watched))
		if r.Body != nil && r.Body != http.NoBody {
			inner.Body = watched
		}
		defer func() { // net/http does this only for its own request
			if inner.MultipartForm != nil && r.MultipartForm == nil {
				_ = inner.MultipartForm.RemoveAll()
			}
		}()
		next.ServeHTTP(w, inner)
	})
}

type watchedKey struct{}

// watchedBodyOf returns the body of a request inside [WatchBody].
func watchedBodyOf(r *http.Request) *watchedBody {
	watched, _ := r.Context().Value(watchedKey{}).(*watchedBody)
	return watched
}

// watchedBody computes the digest of a body while it is read.
type watchedBody struct {
	mu        sync.Mutex
	from      io.ReadCloser // nil if there is no body
	announced int64         // Content-Length; -1 if it is unknown
	hash      hash.Hash
	size      int64
	ended     bool
	closed    bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read(p)
}

func (b *watchedBody) read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.from.Read(p)
	b.hash.Write(p[:n])
	b.size += int64(n)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// Close closes the body. The unread rest is lost.
func (b *watchedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.from.Close()
}

// drain reads the rest of the body.
func (b *watchedBody) drain(limit int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.from == nil {
		return nil
	}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	for !b.ended && b.size <= limit {
		if _, err := b.read(r.chunk[:]); err != nil && err != io.EOF {
			return err
		}
	}
	if b.size > limit {
		return &tooLargeError{limit: limit, unread: true}
	}
	return nil
}

// isShort reports whether a part of the body was read outside of WatchBody. The
// body has been read to its end.
func (b *watchedBody) isShort() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size < b.announced
}

// sum returns the digest of the body. The body has been read to its end.
func (b *watchedBody) sum() (sum [sha256.Size]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hash.Sum(sum[:0])
	return sum
}

// reader is what a request needs while its body is read.
type reader struct {
	chunk [16 << 10]byte
	hash  hash.Hash
}

var readers = sync.Pool{New: func() any { return &reader{hash: sha256.New()} }}

// tooLargeError is returned for a body of more than limit bytes.
type tooLargeError struct {
	limit  int64
	unread bool // a part of the body was read, the rest was not
}

func (e *tooLargeError) Error() string { return "httponce: the body is too large" }
