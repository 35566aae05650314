package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// The program gets one order twice, and another one.
func TestOneOrderOneInvoice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	dir, address := t.TempDir(), freeAddress(t)
	program := exec.CommandContext(ctx, build(ctx, t, address))
	program.Dir, program.Stderr = dir, t.Output()
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
		if got := resp.Header.Get("Idempotent-Replayed"); resp.StatusCode != http.StatusOK || got != c.replayed {
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

// build builds the program, which listens at address, and returns its path.
func build(ctx context.Context, t *testing.T, address string) string {
	t.Helper()
	const port = `"localhost:8080"`
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), port) {
		t.Fatalf("main.go does not listen at %s", port)
	}
	original, err := filepath.Abs("main.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "quickstart")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		changed: strings.Replace(string(source), port, strconv.Quote(address), 1),
		overlay: string(replace),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlay, "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release, which has compiled the rest
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// place sends an order, and retries until the program listens.
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

// items returns the items of a table in alphabetical order.
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
