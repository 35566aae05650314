package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// provider is a payment provider on loopback. It charges whoever asks. Who sends an Idempotency-Key again
// gets the first answer again and is not charged, as with the large ones.
type provider struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	charges map[string][]Charge // by order
	byKey   map[string]Charge
}

// Charge is money that was really taken.
type Charge struct {
	ID    string
	Order string
	Cents int64
}

// thinking is how long a charge takes: somewhat less than in life, but longer than a look into a database.
const thinking = 10 * time.Millisecond

func newProvider() (*provider, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the payment provider of the demo needs a loopback port: %w", err)
	}
	p := &provider{
		url:     "http://" + listener.Addr().String(),
		charges: map[string][]Charge{},
		byKey:   map[string]Charge{},
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: taskTime}
	go p.server.Serve(listener)
	return p, nil
}

func (p *provider) close() { p.server.Close() }

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, ok := p.charge(r.Header.Get("Idempotency-Key"), o)
	if !ok {
		http.Error(w, "this idempotency key was used for another charge", http.StatusUnprocessableEntity)
		return
	}
	think(r.Context())
	json.NewEncoder(w).Encode(Receipt{ChargeID: c.ID})
}

func (p *provider) charge(key string, o Order) (c Charge, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok = p.byKey[key]; ok {
		return c, c.Order == o.ID && c.Cents == o.Cents
	}
	c = Charge{ID: fmt.Sprintf("ch_%s_%d", o.ID, len(p.charges[o.ID])+1), Order: o.ID, Cents: o.Cents}
	p.charges[o.ID] = append(p.charges[o.ID], c)
	if key != "" {
		p.byKey[key] = c
	}
	return c, true
}

func think(ctx context.Context) {
	select {
	case <-time.After(thinking):
	case <-ctx.Done():
	}
}

// charged returns the charges that were made for an order.
func (p *provider) charged(order string) []Charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.charges[order]
}

// save writes all charges to a file.
func (p *provider) save(file string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := json.MarshalIndent(p.charges, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
