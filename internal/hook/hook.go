// Package hook is shared by the clients of foreign HTTP servers. It has the
// signature of Standard Webhooks, URLs whose paths may be secret, and
// connections to public addresses only.
package hook

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/name"
)

// Transport connects to public addresses and to the networks in allow. Like any
// transport, it follows no redirects. It uses no proxy, because a proxy could
// connect to any address.
func Transport(allow []netip.Prefix, timeout time.Duration, idle int, certificates *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout, Control: guard(allow).control}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        certificates.Clone(),
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// A timeout ends an HTTP/1 connection, but only one request of an
		// HTTP/2 connection. Without pings, a dead connection would be used for
		// a quarter of an hour.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * timeout, PingTimeout: timeout},
	}
}

// Place is a URL that requests are sent to.
type Place struct {
	URL  string
	Host string            // for people: paths and queries may be secret
	hide *strings.Replacer // takes them out of an answer, which often repeats them
}

// NewPlace checks a URL. Its errors show only the host.
func NewPlace(text string, allowHTTP bool) (Place, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		return Place{}, errors.New("an endpoint has no valid URL") // its text may hold a secret
	case u.User != nil || u.Fragment != "":
		return Place{}, fmt.Errorf("the URL of an endpoint at %s has a user or a fragment, which cannot be sent: leave it out", u.Host)
	case u.Scheme == "http" && !allowHTTP:
		return Place{}, fmt.Errorf("the URL of an endpoint at %s is not https: change it, or set AllowHTTP", u.Host)
	case u.Scheme != "http" && u.Scheme != "https":
		return Place{}, fmt.Errorf("the URL of an endpoint at %s begins with %.20q: it must be https", u.Host, u.Scheme)
	}
	return Place{URL: text, Host: u.Host, hide: strings.NewReplacer(secretsOf(u)...)}, nil
}

const (
	leastStep  = 10 // bytes of a step of a path that may be a secret by itself: shorter ones are words
	leastValue = 4  // the same of a value in a query
)

// secretsOf returns the parts of a URL that may be secret and that an answer
// may repeat, each followed by its replacement: the whole first, then the parts
// with slashes and ampersands escaped in other ways.
func secretsOf(u *url.URL) (hidden []string) {
	hide := func(least int, parts ...string) {
		for _, part := range parts {
			if len(part) >= least {
				hidden = append(hidden, part, "...")
			}
		}
	}
	hide(2, u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery)
	hide(leastStep, strings.Split(u.Path, "/")...)
	hide(leastStep, strings.Split(u.EscapedPath(), "/")...)
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		hide(leastValue, value)
		if plain, err := url.QueryUnescape(value); err == nil {
			hide(leastValue, plain)
		}
	}
	return hidden
}

const (
	maxDrained = 16 << 10 // bytes that are read of an answer, so that its connection can be used again
	maxExcerpt = 200      // bytes of it that are worth telling
)

// Drain reads the rest of an answer.
func Drain(body io.Reader) { _, _ = io.CopyN(io.Discard, body, maxDrained) }

// Excerpt returns a colon and the beginning of an answer, for people, or
// nothing if the answer is empty.
func (p Place) Excerpt(body io.Reader) string {
	read, _ := io.ReadAll(io.LimitReader(body, maxDrained)) // what there is of it will do
	text := strings.TrimSpace(string(read))
	if text == "" {
		return ""
	}
	return ": " + name.Line(p.hide.Replace(text), maxExcerpt)
}
