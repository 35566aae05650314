package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once/httponce"
)

// tell pays over a bad connection and prints the replies.
func tell(ctx context.Context, out io.Writer, server string) error {
	var network line
	network.lose.Store(1)
	c := &client{
		server: server,
		out:    out,
		http:   http.Client{Transport: &httponce.Transport{Base: &http.Transport{DialContext: network.dial, DisableKeepAlives: true}}},
	}
	defer c.http.CloseIdleConnections()
	// A client that repeats a payment, for example after a crash, must find its
	// key again. Here it is the number of the order.
	order1, order2 := httponce.WithKey(ctx, "order-1"), httponce.WithKey(ctx, "order-2")
	for _, step := range []struct {
		context.Context
		what, method, path, body string
	}{
		{order1, "the reply is lost once", "POST", "/payments", `{"cents": 4999}`},
		{order1, "sent again on purpose", "POST", "/payments", `{ "cents":4999 }`},
		{order1, "another amount under the same key", "POST", "/payments", `{"cents": 1}`},
		{order2, "too much, so the row is rolled back", "POST", "/payments", `{"cents": 20000}`},
		{order2, "and the answer is remembered", "POST", "/payments", `{"cents": 20000}`},
		{ctx, "the first payment", "GET", "/payments/1", ""},
		{ctx, "is the only one", "GET", "/payments/2", ""},
	} {
		if err := c.do(step.Context, step.what, step.method, step.path, step.body); err != nil {
			return err
		}
	}
	return nil
}

// line is a network that loses replies after the request has arrived.
type line struct{ lose atomic.Int64 }

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &flaky{conn, l}, nil
}

type flaky struct {
	net.Conn
	line *line
}

// Read waits for the reply before it loses it, so that the server is done.
func (f *flaky) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if err == nil && f.line.lose.Add(-1) >= 0 {
		return 0, errors.Join(errors.New("the connection was lost"), f.Conn.Close())
	}
	return n, err
}

// client prints the replies.
type client struct {
	server string
	out    io.Writer
	http   http.Client
}

func (c *client) do(ctx context.Context, what, method, path, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, c.server+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Api-Key", "alice-secret")
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var said reply
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "%s: %d after %d attempts, replayed %v, %v\n",
		what, resp.StatusCode, httponce.Attempts(resp), httponce.Replayed(resp), said)
	return err
}

// reply is a payment or a problem document.
type reply struct {
	Payment
	Title string
}

// String formats the reply.
func (r reply) String() string {
	if r.Title != "" {
		return r.Title
	}
	return fmt.Sprintf("payment %s of %d cents", r.ID, r.Cents)
}
