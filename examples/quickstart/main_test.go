package main

import (
	"context"
	"database/sql"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// TestMain runs the program instead of the tests in the process that TestOneOrderOneInvoice starts.
func TestMain(m *testing.M) {
	if os.Getenv("ADDR") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestOneOrderOneInvoice sends an order twice, and another one, to the program.
func TestOneOrderOneInvoice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	dir, address := t.TempDir(), freeAddress(t)
	program := exec.CommandContext(ctx, os.Args[0])
	program.Dir, program.Env = dir, append(os.Environ(), "ADDR="+address)
	program.Stderr = t.Output()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	for _, c := range []struct{ key, item, replayed string }{
		{"order-1", "tea", ""},
		{"order-1", "tea", "true"},
		{"order-2", "milk", ""},
	} {
		resp := place(ctx, t, address, c.key, c.item)
		if got := resp.Header.Get("Idempotent-Replayed"); resp.StatusCode != http.StatusCreated || got != c.replayed {
			t.Errorf("%s: %s, replayed %q, want %q", c.key, resp.Status, got, c.replayed)
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for len(items(ctx, t, db, "invoices")) < len("milk,tea") {
		time.Sleep(10 * time.Millisecond)
	}
	for _, table := range []string{"orders", "invoices"} {
		if got := items(ctx, t, db, table); got != "milk,tea" {
			t.Errorf("%s: %s", table, got)
		}
	}
}

// place sends an order, again and again until the program listens.
func place(ctx context.Context, t *testing.T, address, key, item string) *http.Response {
	t.Helper()
	for {
		body := strings.NewReader(url.Values{"item": {item}}.Encode())
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/orders", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			return resp
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// items are those of a table, in alphabetical order.
func items(ctx context.Context, t *testing.T, db *sql.DB, table string) (all string) {
	t.Helper()
	err := db.QueryRowContext(ctx, `SELECT coalesce(group_concat(item, ','), '') FROM (SELECT item FROM `+table+` ORDER BY item)`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
