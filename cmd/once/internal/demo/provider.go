package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/trial"
)

// provider is a payment provider and a mail server on loopback. A repeated
// Idempotency-Key gets the first answer without another charge, as with real
// providers. Every letter is sent.
type provider struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	charges map[string][]Charge // by order
	byKey   map[string]Charge
	letters map[string]int // by order
	refunds map[string]int // by order
	asked   int            // for refunds
}

// Charge is a charge that was made.
type Charge struct {
	ID    string
	Order string
	Cents int64
	at    time.Time
}

// thinking is the duration of a charge. It is longer than a database query.
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
		letters: map[string]int{},
		refunds: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charge", p.takeCharge)
	mux.HandleFunc("POST /letter", p.takeLetter)
	mux.HandleFunc("POST /refund", p.takeRefund)
	mux.HandleFunc("GET /orders/{order}", p.tell)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: requestTime}
	go p.server.Serve(listener)
	return p, nil
}

func (p *provider) close() { p.server.Close() }

func (p *provider) takeCharge(w http.ResponseWriter, r *http.Request) {
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
	trial.Pause(r.Context(), thinking)
	json.NewEncoder(w).Encode(Receipt{ChargeID: c.ID})
}

func (p *provider) charge(key string, o Order) (c Charge, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok = p.byKey[key]; ok {
		return c, c.Order == o.ID && c.Cents == o.Cents
	}
	c = Charge{ID: fmt.Sprintf("ch_%s_%d", o.ID, len(p.charges[o.ID])+1), Order: o.ID, Cents: o.Cents, at: time.Now()}
	p.charges[o.ID] = append(p.charges[o.ID], c)
	if key != "" {
		p.byKey[key] = c
	}
	return c, true
}

func (p *provider) takeLetter(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.letters[o.ID]++
	p.mu.Unlock()
	trial.Pause(r.Context(), thinking)
}

// made returns the number of charges and letters of each order.
func (p *provider) made() (charges, letters map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	charges = make(map[string]int, len(p.charges))
	for order, made := range p.charges {
		charges[order] = len(made)
	}
	return charges, maps.Clone(p.letters)
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

// pause waits for d or until ctx ends.
