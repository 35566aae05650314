package httponce

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"iter"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/checksum"
)

// compared are the request headers that a repeat has in common with the first
// request by default. Each changes what a request asks for, and no client or
// proxy changes it between two attempts. A host name is none of them: clients
// reach one service by several.
var compared = []string{"Content-Range", "If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since",
	"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// digest computes the mark of the request from all that repeats must have in
// common.
func (x *exchange) digest() error {
	sum := x.body.sum
	if x.Fingerprint != nil {
		same, err := x.Fingerprint(x.r, x.body.bytes())
		if err != nil {
			return problemBody.because(err.Error())
		}
		sum = sha256.Sum256(same)
	}
	b := append(x.appendTarget(make([]byte, 0, 256)), sum[:]...)
	x.mark = sha256.Sum256(x.appendCompared(b))
	return nil
}

// appendTarget appends the method and the target of the request, each part with
// its length.
func (x *exchange) appendTarget(b []byte) []byte {
	path, query := targetOf(x.r)
	return appendParts(b, x.r.Method, path, query)
}

// targetOf returns the path and the query that the client asked for. Outer
// handlers, such as that of [http.StripPrefix], change the URL of a request but
// not its RequestURI. Without it, two guards could take each other's responses.
func targetOf(r *http.Request) (path, query string) {
	path, query, _ = strings.Cut(r.RequestURI, "?")
	switch {
	case r.RequestURI == "": // not from a server
		return r.URL.EscapedPath(), r.URL.RawQuery
	case path == r.URL.EscapedPath():
		return path, query
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.EscapedPath(), u.RawQuery
	}
	return path, query
}

// appendCompared appends the headers of Options.Compare that the request has,
// and the host that led to the guard. It appends nothing to most requests, so
// their marks are those of older builds.
func (x *exchange) appendCompared(b []byte) []byte {
	for _, name := range x.Compare {
		sent := x.r.Header[name]
		if name == "Host" {
			sent = []string{strings.ToLower(x.r.Host)}
		}
		if len(sent) > 0 {
			b = appendParts(b, name, strings.Join(sent, ", "))
		}
	}
	if host := x.routedHost(); host != "" {
		b = appendParts(b, "", host)
	}
	return b
}

// appendParts appends texts, each with its length.
func appendParts(b []byte, parts ...string) []byte {
	for _, part := range parts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	return b
}

// routedHost returns the host in the pattern by which an [http.ServeMux] finds
// the guard or the guarded handler. It is empty if hosts make no difference.
func (x *exchange) routedHost() string {
	host := hostOf(x.r.Pattern)
	if x.mux != nil {
		_, pattern := x.mux.Handler(x.r)
		host += hostOf(pattern)
	}
	return host
}

// hostOf returns the host of a pattern of the form [METHOD ][HOST]/[PATH].
func hostOf(pattern string) string {
	if _, rest, ok := strings.Cut(pattern, " "); ok {
		pattern = strings.TrimLeft(rest, " \t")
	}
	host, _, _ := strings.Cut(pattern, "/")
	return host
}

// marks returns the marks that the request may have been recorded with, the
// current one first: with the secrets of the Ring, and by older builds.
func (x *exchange) marks() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range x.Ring.marks() {
			if !yield(x.Ring.mark(i, x.mark[:])) {
				return
			}
		}
		if mark := x.olderMark(); mark != nil {
			yield(mark)
		}
	}
}

// isAnotherMark reports whether a key was recorded with another mark. The error
// of a handler does not count: it may be about a step of its own.
func isAnotherMark(err error) bool {
	var failed *handlerError
	return errors.Is(err, once.ErrMismatch) && !errors.As(err, &failed)
}

// olderMark returns the mark of an older build, if the key was recorded with it.
func (x *exchange) olderMark() []byte {
	digest, ok := x.olderDigest()
	if !ok {
		return nil
	}
	rec, err := x.store.Get(x.r.Context(), x.key)
	if err != nil {
		return nil
	}
	for i := range x.Ring.marks() {
		mark := x.Ring.mark(i, digest[:])
		print := checksum.Fingerprint(x.store.Options().Secret, x.key.UUID(), mark)
		if hmac.Equal(print[:], rec.Fingerprint) {
			return mark
		}
	}
	return nil
}

// olderDigest returns the digest that the first builds made of the request. A
// request with something that they did not digest has none. They digested the
// URL as outer handlers had left it. Such a digest is not recognised, because it
// could be that of a request to another route.
func (x *exchange) olderDigest() (sum [sha256.Size]byte, ok bool) {
	same := x.body.bytes()
	switch {
	case len(x.appendCompared(nil)) > 0:
		return sum, false
	case x.Fingerprint != nil:
		var err error
		if same, err = x.Fingerprint(x.r, same); err != nil {
			return sum, false
		}
	case sha256.Sum256(same) != x.body.sum: // see WatchBody
		return sum, false
	}
	return sha256.Sum256(append(x.appendTarget(nil), same...)), true
}

// canonicalHeaders returns the canonical names of headers, sorted and without
// repetitions.
func canonicalHeaders(names []string) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		all = append(all, textproto.CanonicalMIMEHeaderKey(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
