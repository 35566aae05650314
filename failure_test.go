package once_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// gone is the address of a server that has ended.
func gone(t testing.TB) string {
	server := httptest.NewServer(nil)
	server.Close()
	return server.URL
}

func TestIsDialErrorOfRealClients(t *testing.T) {
	hangUp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangUp.Close()
	unresolved := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no name server") }}
	nameless := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Resolver: unresolved}).DialContext}}
	proxy, _ := url.Parse(gone(t))
	proxied := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	slow := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Deadline: time.Unix(1, 0)}).DialContext}}
	for name, c := range map[string]struct {
		client *http.Client
		url    string
		want   bool
	}{
		"refused":              {http.DefaultClient, gone(t), true},
		"no such host":         {nameless, "http://shop.test", true},
		"a proxy that is gone": {proxied, "http://shop.test", true},
		"too slow to connect":  {slow, hangUp.URL, true},
		"hung up":              {http.DefaultClient, hangUp.URL, false},
	} {
		_, err := c.client.Post(c.url, "text/plain", strings.NewReader("charge"))
		if err == nil || once.IsDialError(err) != c.want || once.IsDialError(fmt.Errorf("charge: %w", err)) != c.want {
			t.Errorf("%s: %v is a dial error: %t", name, err, once.IsDialError(err))
		}
	}
}

func TestIsDialError(t *testing.T) {
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: refused}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, false},
		{dial, true},
		{refused, true},
		{&net.DNSError{Err: "no such host", Name: "shop"}, true},
		{once.NotDone(dial), true},
		{once.RetryAfter(time.Second, once.Permanent(dial)), true},
		{errors.Join(dial, dial), true},
		{errors.Join(dial, io.ErrUnexpectedEOF), false}, // an earlier attempt may have been sent
		{fmt.Errorf("%w, after %w", dial, io.EOF), false},
		{errors.Join(), false},
		{&net.OpError{Op: "read", Net: "udp", Err: refused}, false},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}, false},
		{&net.OpError{Op: "proxyconnect", Net: "tcp", Err: io.EOF}, false},
		{os.NewSyscallError("read", syscall.ECONNRESET), false},
		{context.DeadlineExceeded, false},
	} {
		if got := once.IsDialError(c.err); got != c.want {
			t.Errorf("IsDialError(%v) = %t, want %t", c.err, got, c.want)
		}
	}
}

// A redirect that cannot be followed is a connection error too, although the
// request before it had its effect.
func TestAClientThatFollowsNoRedirectDoesNotDialAgain(t *testing.T) {
	for _, status := range []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		charged := false
		psp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			charged = true
			http.Redirect(w, r, gone(t), status)
		}))
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := client.Post(psp.URL, "text/plain", strings.NewReader("charge"))
		if err != nil || resp.StatusCode != status || !charged {
			t.Errorf("%d: %v", status, err)
		} else {
			resp.Body.Close()
		}
		psp.Close()
	}
}

// Work that could not connect is not unknown: its key is free.
func ExampleIsDialError() {
	store := memstore.New(nil)
	charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	post := func(ctx context.Context, url string, key once.Key) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("49.99"))
		if err != nil {
			return "", once.NotDone(err)
		}
		r.Header.Set("Idempotency-Key", key.String())
		r.GetBody = nil // net/http sends it once only
		resp, err := client.Do(r)
		if once.IsDialError(err) {
			return "", once.NotDone(err)
		}
		if err != nil {
			return "", err // it may have arrived: nobody knows
		}
		defer resp.Body.Close()
		return resp.Status, nil
	}
	psp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer psp.Close()
	for _, url := range []string{"http://127.0.0.1:1", psp.URL} {
		status, err := once.Do(context.Background(), store, charge.For("order-17"), func(ctx context.Context, key once.Key) (string, error) {
			return post(ctx, url, key)
		})
		fmt.Println(status, err == nil)
	}
	// Output:
	// false
	// 200 OK true
}

// The text of an error is stored as the reason of a key or a message, and cut
// after some hundred bytes. What happened comes first, in the words of the work.
func TestErrorsBeginWithWhatHappened(t *testing.T) {
	boom := errors.New("no such customer")
	for _, c := range []struct {
		err  error
		want string
	}{
		{once.NotDone(boom), "no such customer (nothing happened)"},
		{once.Permanent(boom), "no such customer (a retry cannot help)"},
		{once.NotDone(once.Permanent(boom)), "no such customer (nothing happened, a retry cannot help)"},
		{once.Permanent(once.NotDone(once.Permanent(boom))), "no such customer (a retry cannot help, nothing happened)"},
		{once.RetryAfter(5*time.Second, once.NotDone(boom)), "no such customer (retry after 5s, nothing happened)"},
		{once.NotDone(once.RetryAfter(0, boom)), "no such customer (nothing happened, try again)"},
		{fmt.Errorf("charge: %w", once.NotDone(once.Permanent(boom))), "charge: no such customer (nothing happened, a retry cannot help)"},
		{once.NotDone(fmt.Errorf("charge: %w", once.Permanent(boom))), "charge: no such customer (a retry cannot help) (nothing happened)"},
		{once.NotDone(nil), "once: nothing happened"},
		{once.Permanent(once.NotDone(nil)), "once: nothing happened (a retry cannot help)"},
		{once.RetryAfter(time.Second, nil), "once: try again, retry after 1s"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
