package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
)

// bank is a payment provider that charges once for each idempotency key.
type bank struct {
	*httptest.Server
	mu    sync.Mutex
	seen  map[string]bool
	calls int
}

func newBank() *bank {
	b := &bank{seen: make(map[string]bool)}
	b.Server = httptest.NewServer(b)
	return b
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	b.seen[r.Header.Get("Idempotency-Key")] = true
	w.WriteHeader(http.StatusOK)
}

func (b *bank) charged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}
