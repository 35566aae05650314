package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// The program is killed a hundred times while 16 clients send orders, and repeat
// each until it is answered. In the end there is one order and one invoice for
// each, and nothing is left to do. No message is left both in the outbox and in the
// queue: it goes from one to the other in one commit.
func TestAHundredKillsLoseAndDoubleNothing(t *testing.T) {
	lives, clients := 100, 16
	if testing.Short() {
		lives = 12
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testenv.Patience)
	defer cancel()
	dir, address := t.TempDir(), freeAddress(t)
	path := build(ctx, t, address)
	start := func() *exec.Cmd {
		program := exec.CommandContext(ctx, path)
		program.Dir = dir
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		return program
	}

	var placed atomic.Int64
	var waiting sync.WaitGroup
	last := make(chan struct{}) // closed when the clients are to finish
	for c := range clients {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			for n := 0; ; n++ {
				insist(ctx, address, fmt.Sprintf("order-%d-%d", c, n))
				placed.Add(1)
				select {
				case <-last:
					return
				case <-ctx.Done():
					return
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond): // so that the relay and the consumer keep up
				}
			}
		}()
	}
	for life := range lives {
		program := start()
		enough, limit := placed.Load()+rand.Int64N(40), time.Now().Add(time.Second)
		for placed.Load() < enough && time.Now().Before(limit) {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond) // while invoices are written
		_ = program.Process.Kill()
		_ = program.Wait()
		if life%4 == 1 { // not always, because it also repairs what the process has left of the log
			wantNoCopies(ctx, t, dir)
		}
	}
	program := start()
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	close(last)
	waiting.Wait()

	db := open(t, dir)
	defer db.Close()
	count := func(query string) (n int64) {
		if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}
	for count(`SELECT (SELECT count(*) FROM once_outbox) + (SELECT count(*) FROM once_shelf)`) > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	if n := count(`SELECT count(*) FROM orders`); n != placed.Load() || n < int64(clients) {
		t.Errorf("%d orders were answered, and there are %d", placed.Load(), n)
	}
	for what, query := range map[string]string{
		"orders that are there twice":   `SELECT count(*) - count(DISTINCT item) FROM orders`,
		"orders without an invoice":     `SELECT count(*) FROM orders WHERE item NOT IN (SELECT item FROM invoices)`,
		"invoices that are there twice": `SELECT count(*) - count(DISTINCT item) FROM invoices`,
		"invoices without an order":     `SELECT count(*) FROM invoices WHERE item NOT IN (SELECT item FROM orders)`,
	} {
		if n := count(query); n > 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	t.Logf("%d orders in %d lives", placed.Load(), lives)
}

func open(t *testing.T, dir string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// wantNoCopies checks that no message is in two places.
func wantNoCopies(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	db := open(t, dir)
	defer db.Close()
	var tables, copies int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE name IN ('once_outbox', 'once_shelf')`).Scan(&tables)
	if err == nil && tables == 2 { // else it was killed before they were made
		err = db.QueryRowContext(ctx, `SELECT count(*) FROM once_outbox WHERE id IN (SELECT key_id FROM once_shelf)`).Scan(&copies)
	}
	if err != nil {
		t.Fatal(err)
	}
	if copies > 0 {
		t.Errorf("%d messages are in the outbox and in the queue", copies)
	}
}

// insist sends an order until it is answered.
func insist(ctx context.Context, address, key string) {
	for ctx.Err() == nil {
		body := strings.NewReader(url.Values{"item": {key}}.Encode())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/orders", body)
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Idempotency-Key", key)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}
