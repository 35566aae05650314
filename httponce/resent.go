package httponce

import (
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/effectively-once/once/internal/resent"
)

// origin returns the request that was redirected to this one, or the request
// itself.
func (r *outgoing) origin() *http.Request {
	origin := r.Request
	for origin.Response != nil && origin.Response.Request != nil {
		origin = origin.Response.Request
	}
	return origin
}

// requestID is what all attempts of one request share. The copies that
// [http.Client] makes of a request keep its URL.
type requestID struct {
	url            *url.URL
	method, target string
}

func (r *outgoing) id() requestID {
	origin := r.origin()
	return requestID{origin.URL, origin.Method, origin.URL.String()}
}

// print returns a digest of the body.
func (r *outgoing) print() (sum resent.Print) {
	h := sha256.New()
	if !r.body.isEmpty() {
		if r.body.get == nil {
			return sum
		}
		body, err := r.body.get()
		if err != nil {
			return sum
		}
		defer body.Close()
		if _, err := io.Copy(h, body); err != nil {
			return sum
		}
	}
	h.Sum(sum[:0])
	return sum
}

// ended records whether a request with a random key has failed. If it has, the
// client above may send it again: it must not get another key.
func (t *Transport) ended(r *outgoing, resp *http.Response, err error) {
	if !r.random {
		return
	}
	id, key := r.id(), r.key[0]
	failed := func() { t.failed.Failed(id, key, r.print()) }
	if err != nil || mayBeSentAgain(resp) {
		failed()
		return
	}
	t.failed.Done(id, key)
	if resp.Body != nil && resp.Body != http.NoBody && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &breakable{resp.Body, failed}
	}
}

// mayBeSentAgain reports whether a client may send the request of a response
// again: because it failed, or because it is redirected and may fail elsewhere.
func mayBeSentAgain(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	_, retryable := isRetryable(resp, nil, time.Time{})
	return retryable || resp.StatusCode >= 500
}

// breakable is the body of a response that may break off.
type breakable struct {
	io.ReadCloser
	broke func()
}

func (b *breakable) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.broke()
	}
	return n, err
}
