package httponce

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/effectively-once/once"
)

// keepBuffer is the capacity up to which a buffer is used again. A larger one
// would cost its memory for good.
const keepBuffer = 64 << 10

// heldBody holds the bodies of all requests that are under way with one key.
// They are nearly always equal, so they share one copy: each request compares
// what it reads with what is there, and appends only what is missing. A request
// whose body differs gets a heldBody of its own.
type heldBody struct {
	mu   sync.Mutex
	data []byte // only grows, so that a prefix of it never changes
	uses int    // requests that hold it, under the mutex of bodies
}

var heldBodies = sync.Pool{New: func() any { return new(heldBody) }}

// add adds chunk at an offset that is not past the end. It reports false, and
// adds nothing, if other bytes are there. The body is expected to have at most
// limit bytes in all.
func (b *heldBody) add(at int, chunk []byte, limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := min(len(chunk), len(b.data)-at)
	if !bytes.Equal(chunk[:known], b.data[at:at+known]) {
		return false
	}
	need := at + len(chunk)
	if need > cap(b.data) {
		size := max(2*cap(b.data), 512)
		if int64(size) > limit {
			size = int(limit)
		}
		b.data = slices.Grow(b.data, max(size, need)-len(b.data))
	}
	b.data = append(b.data, chunk[known:]...)
	return true
}

// prefix returns the first n bytes. They are valid while the body is in use.
func (b *heldBody) prefix(n int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data[:n:n]
}

// bodies finds the body that is held for a key.
type bodies struct {
	mu   sync.Mutex
	held map[once.Key]*heldBody
}

// join returns the body of a key. Whoever joins also leaves.
func (s *bodies) join(key once.Key) *heldBody {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.held[key]
	if b == nil {
		b = heldBodies.Get().(*heldBody)
		s.held[key] = b
	}
	b.uses++
	return b
}

// part returns a body for a request whose body differs from the one it shared,
// except for the first n bytes.
func (s *bodies) part(key once.Key, b *heldBody, n int) *heldBody {
	own := heldBodies.Get().(*heldBody)
	own.uses, own.data = 1, append(own.data, b.prefix(n)...)
	s.leave(key, b)
	return own
}

// leave ends the use of a body.
func (s *bodies) leave(key once.Key, b *heldBody) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.uses--; b.uses > 0 {
		return
	}
	if s.held[key] == b {
		delete(s.held, key)
	}
	if cap(b.data) <= keepBuffer {
		b.data = b.data[:0]
		heldBodies.Put(b)
	}
}

// reading is what a request needs while its body is read, and no longer.
type reading struct {
	chunk [16 << 10]byte
	hash  hash.Hash
}

var readings = sync.Pool{New: func() any { return &reading{hash: sha256.New()} }}

var errTooLarge = errors.New("httponce: the body is too large")

// readBody reads the body and digests it. If the request cannot be guarded, it
// is answered.
func (x *exchange) readBody() bool {
	if x.r.ContentLength > x.MaxBody {
		return x.tooLarge(x.MaxBody)
	}
	x.wasRead = true
	watched := watchedBodyOf(x.r)
	err := x.readAll()
	if watched != nil && (err == nil || errors.Is(err, http.ErrBodyReadAfterClose)) {
		err = watched.drain(x.MaxBody)
	}
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, errTooLarge):
		x.w.Header().Set("Connection", "close") // instead of reading the rest
		return x.tooLarge(x.MaxBody)
	case errors.As(err, &over): // a lower limit that somebody outside has set
		return x.tooLarge(over.Limit)
	case errors.Is(err, http.ErrBodyReadAfterClose), err == nil && watched != nil && watched.isShort():
		return x.notWhole()
	case err != nil:
		x.fail(problemBody)
		return false
	case watched == nil && !mayBeWhole(x.r, x.size):
		return x.notWhole()
	case watched == nil || watched.sum() == x.sum:
		return true
	case x.Fingerprint != nil: // which would see only a part of it
		return x.notWhole()
	}
	x.sum = watched.sum()
	return true
}

func (x *exchange) readAll() error {
	x.sum = sha256.Sum256(nil)
	if x.r.Body == nil || x.r.Body == http.NoBody {
		return nil
	}
	x.held = x.bodies.join(x.key)
	r := readings.Get().(*reading)
	defer readings.Put(r)
	r.hash.Reset()
	for {
		n, err := x.r.Body.Read(r.chunk[:])
		if int64(x.size)+int64(n) > x.MaxBody {
			return errTooLarge
		}
		if n > 0 {
			r.hash.Write(r.chunk[:n])
			x.hold(r.chunk[:n])
		}
		if err == io.EOF {
			r.hash.Sum(x.sum[:0])
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// hold keeps the next bytes of the body.
func (x *exchange) hold(chunk []byte) {
	limit := x.MaxBody
	if announced := x.r.ContentLength; announced >= int64(x.size+len(chunk)) {
		limit = announced
	}
	if !x.held.add(x.size, chunk, limit) {
		x.held = x.bodies.part(x.key, x.held, x.size)
		x.held.add(x.size, chunk, limit)
	}
	x.size += len(chunk)
}

// body returns the body of the request, which is valid until close.
func (x *exchange) body() []byte {
	if x.held == nil {
		return nil
	}
	return x.held.prefix(x.size)
}

func (x *exchange) tooLarge(limit int64) bool {
	x.fail(problemTooLarge.because(fmt.Sprintf("At most %d bytes are taken. Nothing was done.", limit)))
	return false
}

// errNotWhole says what to do about a body that cannot be compared.
var errNotWhole = errors.New("something has read the body before the guard: move it inside the guard, let it put back all that it has read " +
	"(and set ContentLength if that changes), or make httponce.WatchBody the outermost handler")

// notWhole refuses a request that cannot be compared with others.
func (x *exchange) notWhole() bool {
	x.log("the body of a request is not whole", x.Operation, errNotWhole)
	x.fail(problemNotWhole)
	return false
}

// mayBeWhole reports false where n bytes, read to the end, cannot be the whole
// body: another request with this key would pass for the same. It errs on the
// safe side: a body of unknown length that is empty may have been read.
func mayBeWhole(r *http.Request, n int) bool {
	switch {
	case r.ContentLength > 0:
		return int64(n) >= r.ContentLength // more of it if somebody has unpacked it
	case n > 0:
		return !isParsed(r) || !isOfNetHTTP(r.Body)
	}
	// Whoever has read it may have set ContentLength to 0.
	sent, _ := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64)
	return r.ContentLength == 0 && sent <= 0 && len(r.TransferEncoding) == 0 && len(r.PostForm) == 0 && r.MultipartForm == nil
}

// isParsed reports whether the body was read as a form.
func isParsed(r *http.Request) bool {
	const form = "application/x-www-form-urlencoded"
	return r.MultipartForm != nil || len(r.PostForm) > 0 ||
		r.PostForm != nil && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), form)
}

// isOfNetHTTP reports whether a body is the server's own, perhaps limited by
// [http.MaxBytesReader], and not one that somebody has put in its place.
func isOfNetHTTP(body io.ReadCloser) bool {
	t := reflect.TypeOf(body)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "net/http")
}

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
		defer func() { // as net/http does for the request that it knows
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

// watchedBody digests a body while it is read.
type watchedBody struct {
	mu        sync.Mutex
	from      io.ReadCloser // nil: there is none
	announced int64         // bytes; -1: unknown
	hash      hash.Hash
	size      int64
	ended     bool
	closed    bool
}

// Read reads.
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

// Close closes the body. What was not read of it is lost.
func (b *watchedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.from.Close()
}

// drain reads what others have left.
func (b *watchedBody) drain(limit int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.from == nil {
		return nil
	}
	r := readings.Get().(*reading)
	defer readings.Put(r)
	for !b.ended && b.size <= limit {
		if _, err := b.read(r.chunk[:]); err != nil && err != io.EOF {
			return err
		}
	}
	if b.size > limit {
		return errTooLarge
	}
	return nil
}

// isShort reports whether something outside of WatchBody has read of the body,
// which has been read to its end.
func (b *watchedBody) isShort() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size < b.announced
}

// sum returns the digest of the body, which has been read to its end.
func (b *watchedBody) sum() (sum [sha256.Size]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hash.Sum(sum[:0])
	return sum
}
