package httponce

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/effectively-once/once"
)

// keepBuffer is the capacity up to which a buffer is reused. A larger one would
// occupy its memory for good.
const keepBuffer = 64 << 10

// heldBody holds the bodies of all requests in progress with one key. They are
// usually equal, so they share one copy: each request compares what it reads
// with the copy, and appends only what is missing. A request whose body differs
// gets a heldBody of its own.
type heldBody struct {
	mu   sync.Mutex
	data []byte // only grows, so that a prefix of it never changes
	uses int    // requests that use it; guarded by the mutex of bodies
}

var heldBodies = sync.Pool{New: func() any { return new(heldBody) }}

// add adds chunk at an offset that is not past the end. If other bytes are
// there, it adds nothing and returns false. The whole body is expected to have
// at most limit bytes.
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

// prefix returns the first n bytes, which are valid while the body is in use.
func (b *heldBody) prefix(n int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data[:n:n]
}

// bodies are the bodies of all requests in progress, by key.
type bodies struct {
	mu   sync.Mutex
	held map[once.Key]*heldBody
}

func newBodies() *bodies { return &bodies{held: make(map[once.Key]*heldBody)} }

// join returns the body of a key. The caller calls leave when it is done.
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

// part returns a body of its own for a request whose body differs from the
// shared one after n bytes.
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

// errNotWhole is returned for a body that cannot be compared with others.
var errNotWhole = errors.New("something has read the body before the guard: move it inside the guard, let it put back all that it has read " +
	"(and set ContentLength if that changes), or make httponce.WatchBody the outermost handler")

var emptySum = sha256.Sum256(nil)

// requestBody is the buffered body of one request. The zero value has not been
// read.
type requestBody struct {
	all   *bodies
	key   once.Key
	held  *heldBody         // has the bytes; nil if there are none
	size  int               // bytes of held that belong to this request
	sum   [sha256.Size]byte // digest of the body
	taken bool              // reading has started, so the handler gets the buffer
}

// read reads and digests the body of r. exact requires that the bytes read are
// those that were sent, also where [WatchBody] knows the digest of those.
func (b *requestBody) read(r *http.Request, limit int64, exact bool) error {
	if r.ContentLength > limit {
		return &tooLargeError{limit: limit}
	}
	b.taken = true
	watched := watchedBodyOf(r)
	err := b.readAll(r, limit)
	if watched != nil && (err == nil || errors.Is(err, http.ErrBodyReadAfterClose)) {
		err = watched.drain(limit)
	}
	if err != nil {
		var lower *http.MaxBytesError
		switch {
		case errors.As(err, &lower): // an outer handler has set a lower limit
			return &tooLargeError{limit: lower.Limit}
		case errors.Is(err, http.ErrBodyReadAfterClose):
			return errNotWhole
		}
		return err
	}
	switch {
	case watched != nil && watched.isShort():
		return errNotWhole
	case watched == nil && !mayBeWhole(r, b.size):
		return errNotWhole
	case watched == nil || watched.sum() == b.sum:
		return nil
	case exact:
		return errNotWhole
	}
	b.sum = watched.sum()
	return nil
}

func (b *requestBody) readAll(r *http.Request, limit int64) error {
	b.sum = emptySum
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b.held = b.all.join(b.key)
	from := readers.Get().(*reader)
	defer readers.Put(from)
	from.hash.Reset()
	for {
		n, err := r.Body.Read(from.chunk[:])
		if int64(b.size)+int64(n) > limit {
			return &tooLargeError{limit: limit, unread: true}
		}
		if n > 0 {
			from.hash.Write(from.chunk[:n])
			b.append(from.chunk[:n], r.ContentLength, limit)
		}
		if err == io.EOF {
			from.hash.Sum(b.sum[:0])
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// append keeps the next bytes of the body. announced is its Content-Length.
func (b *requestBody) append(chunk []byte, announced, limit int64) {
	if announced >= int64(b.size+len(chunk)) {
		limit = announced
	}
	if !b.held.add(b.size, chunk, limit) {
		b.held = b.all.part(b.key, b.held, b.size)
		b.held.add(b.size, chunk, limit)
	}
	b.size += len(chunk)
}

// bytes returns the body, which is valid until close.
func (b *requestBody) bytes() []byte {
	if b.held == nil {
		return nil
	}
	return b.held.prefix(b.size)
}

func (b *requestBody) close() {
	if b.held != nil {
		b.all.leave(b.key, b.held)
		b.held = nil
	}
}

// mayBeWhole reports false if n bytes, read to the end, cannot be the whole
// body. A part of a body could make another request with its key look the same.
func mayBeWhole(r *http.Request, n int) bool {
	switch {
	case r.ContentLength > 0:
		return int64(n) >= r.ContentLength // more if an outer handler has decompressed it
	case n > 0:
		return !isParsed(r) || !isOfNetHTTP(r.Body)
	case r.ContentLength < 0 || len(r.TransferEncoding) > 0:
		return wasEmpty(reflect.ValueOf(r.Body), 4)
	}
	// An outer handler that has read it may have set ContentLength to 0.
	sent, _ := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64)
	return sent <= 0 && len(r.PostForm) == 0 && r.MultipartForm == nil
}

// wasEmpty reports whether a body of unknown length, read to its end, had no
// bytes, even if something else has read it too. Only the server knows, and has
// no method that tells, so wasEmpty looks into the body of net/http, inside of
// up to depth wrappers. It errs on the safe side: in a server that it does not
// know, the body may have been read before. TestEmptyBodiesOfUnknownLength
// fails if a release of Go changes these types.
func wasEmpty(body reflect.Value, depth int) bool {
	for body.Kind() == reflect.Pointer || body.Kind() == reflect.Interface {
		body = body.Elem()
	}
	if body.Kind() != reflect.Struct || depth < 0 {
		return false
	}
	if chunks := body.FieldByName("src"); chunks.IsValid() && body.Type().PkgPath() == "net/http" {
		return hadNoChunk(chunks.Elem().Elem())
	}
	if stream := body.FieldByName("stream"); stream.IsValid() && strings.Contains(body.Type().PkgPath(), "net/http") {
		return hadNoData(stream.Elem())
	}
	for i := range body.NumField() {
		if body.Field(i).Type().Implements(aReader) && wasEmpty(body.Field(i), depth-1) {
			return true
		}
	}
	return false
}

var aReader = reflect.TypeFor[io.Reader]()

// hadNoChunk reports whether a chunked body of HTTP/1.1 had only its last chunk,
// which is empty: the reader keeps the two bytes after each other chunk.
func hadNoChunk(chunks reflect.Value) bool {
	if chunks.Kind() != reflect.Struct {
		return false
	}
	left, unchecked, end := chunks.FieldByName("n"), chunks.FieldByName("checkEnd"), chunks.FieldByName("buf")
	return left.Kind() == reflect.Uint64 && left.IsZero() && unchecked.Kind() == reflect.Bool && unchecked.IsZero() &&
		end.Kind() == reflect.Array && end.Len() == 2 && end.IsZero()
}

// hadNoData reports whether a stream of HTTP/2 had no bytes of data. The count
// is complete, because the end of the stream has been read.
func hadNoData(stream reflect.Value) bool {
	if stream.Kind() != reflect.Struct {
		return false
	}
	bytes := stream.FieldByName("bodyBytes")
	return bytes.Kind() == reflect.Int64 && bytes.IsZero()
}

// isParsed reports whether the body was read as a form.
func isParsed(r *http.Request) bool {
	const form = "application/x-www-form-urlencoded"
	return r.MultipartForm != nil || len(r.PostForm) > 0 ||
		r.PostForm != nil && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), form)
}

// isOfNetHTTP reports whether a body is the server's own, perhaps limited by
// [http.MaxBytesReader], and not a replacement.
func isOfNetHTTP(body io.ReadCloser) bool {
	t := reflect.TypeOf(body)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "net/http")
}
