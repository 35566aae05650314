package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func Example() {
	if err := tellIn(context.Background(), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// the reply is lost once: 201 after 2 attempts, replayed true, payment 1 of 4999 cents
	// sent again on purpose: 201 after 1 attempts, replayed true, payment 1 of 4999 cents
	// another amount under the same key: 422 after 1 attempts, replayed false, Idempotency-Key was used for another request
	// too much, so the row is rolled back: 402 after 1 attempts, replayed false, The payment was declined
	// and the answer is remembered: 402 after 1 attempts, replayed true, The payment was declined
	// the first payment: 200 after 1 attempts, replayed false, payment 1 of 4999 cents
	// is the only one: 404 after 1 attempts, replayed false, There is no such payment
}

// testBank returns a bank that ends with the test.
func testBank(t *testing.T) (*bank, string) {
	t.Helper()
	b, err := openBank(t.Context(), filepath.Join(t.TempDir(), "payments.db"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(b.routes())
	t.Cleanup(func() {
		server.Close()
		b.db.Close()
	})
	return b, server.URL
}

// send sends a request without a Transport and returns status and body.
func send(t *testing.T, method, url, apiKey, key, body string) (int, string) {
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	r.Header.Set("Api-Key", apiKey)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}

func (b *bank) rows(t *testing.T) (n int) {
	t.Helper()
	if err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOneRowForACrowd(t *testing.T) {
	b, url := testBank(t)
	var crowd sync.WaitGroup
	for range 16 {
		crowd.Go(func() {
			if status, body := send(t, "POST", url+"/payments", "alice-secret", "order-1", `{"cents":1}`); status != 201 || !strings.Contains(body, `"id":"1"`) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	crowd.Wait()
	if n := b.rows(t); n != 1 {
		t.Errorf("there are %d rows", n)
	}
}

func TestAnswers(t *testing.T) {
	b, url := testBank(t)
	for _, c := range []struct {
		what, method, path, apiKey, key, body string
		status, rows                          int
	}{
		{"no Idempotency-Key", "POST", "/payments", "alice-secret", "", `{"cents":1}`, 400, 0},
		{"an unknown API key", "POST", "/payments", "guessed", "k1", `{"cents":1}`, 401, 0},
		{"no amount", "POST", "/payments", "alice-secret", "k2", `{}`, 400, 0},
		{"too long", "POST", "/payments", "alice-secret", "k3", strings.Repeat(" ", 5<<10), 413, 0},
		{"declined", "POST", "/payments", "alice-secret", "k4", `{"cents":10001}`, 402, 0},
		{"a payment", "POST", "/payments", "alice-secret", "k5", `{"cents":1}`, 201, 1},
		{"another customer's, with the same key", "POST", "/payments", "bob-secret", "k5", `{"cents":2}`, 201, 2},
		{"a payment is shown", "GET", "/payments/1", "alice-secret", "", "", 200, 2},
		{"not to others", "GET", "/payments/1", "bob-secret", "", "", 404, 2},
		{"nor to strangers", "GET", "/payments/1", "", "", "", 401, 2},
	} {
		status, body := send(t, c.method, url+c.path, c.apiKey, c.key, c.body)
		if n := b.rows(t); status != c.status || n != c.rows {
			t.Errorf("%s: %d %s, and %d rows", c.what, status, body, n)
		}
	}
}

// The server is interrupted while it reads a payment.
func TestShutdown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, filepath.Join(t.TempDir(), "payments.db")) }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"cents":1}`
	fmt.Fprintf(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nApi-Key: alice-secret\r\nIdempotency-Key: k\r\n"+
		"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	reader := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(reader, nil); err != nil || resp.StatusCode != 100 {
		t.Fatal(resp, err)
	}
	interrupt()
	<-ctx.Done()
	if _, err := io.WriteString(conn, body); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(reader, nil); err != nil || resp.StatusCode != 201 {
		t.Fatal(resp, err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
