package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
)

// maxCents is the limit of one payment.
const maxCents = 10_000

// Payment is a payment as the API returns it.
type Payment struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// bank keeps payments in a database with transactions of type Tx.
type bank[Tx any] struct {
	store once.TxStore[Tx]

	// add adds a payment in a transaction.
	add func(tx Tx, customer string, p Payment) error

	// find returns a payment of a customer.
	find func(ctx context.Context, customer, id string) (p Payment, found bool, err error)
}

func routes[Tx any](b *bank[Tx]) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /payments", httponce.HandlerTx(b.store, customer, b.pay, &httponce.Options{
		Operation:   "pay",
		Fingerprint: httponce.CanonicalJSON,
		MaxBody:     4 << 10,
	}))
	mux.HandleFunc("GET /payments/{id}", b.show)
	return mux
}

// customer returns the name of the caller.
func customer(r *http.Request) (string, error) {
	names := map[string]string{"alice-secret": "alice", "bob-secret": "bob"} // stands for a table of digests
	name, known := names[r.Header.Get("Api-Key")]
	if !known {
		return "", errors.New("the API key is missing or unknown")
	}
	return name, nil
}

// pay handles a new payment. Two copies of a request that arrive together may
// both enter it; the payment of one is committed, and both get its answer.
func (b *bank[Tx]) pay(w http.ResponseWriter, r *http.Request, tx Tx) error {
	p := Payment{}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Cents <= 0 {
		refuse(w, http.StatusBadRequest, "A payment is an object with cents, more than 0")
		return nil
	}
	name, err := customer(r)
	if err != nil {
		return err
	}
	p.ID = rand.Text()
	if err := b.add(tx, name, p); err != nil {
		return err
	}
	if p.Cents > maxCents { // nothing is added, because the answer is an error
		refuse(w, http.StatusPaymentRequired, "The payment was declined")
		return nil
	}
	w.Header().Set("Location", "/payments/"+p.ID)
	answer(w, http.StatusCreated, "application/json", p)
	return nil
}

func (b *bank[Tx]) show(w http.ResponseWriter, r *http.Request) {
	name, err := customer(r)
	if err != nil {
		refuse(w, http.StatusUnauthorized, "The API key is missing or unknown")
		return
	}
	p, found, err := b.find(r.Context(), name, r.PathValue("id"))
	switch {
	case err != nil:
		slog.ErrorContext(r.Context(), "a payment could not be read", "error", err)
		refuse(w, http.StatusInternalServerError, "The payment could not be read")
	case !found:
		refuse(w, http.StatusNotFound, "There is no such payment")
	default:
		answer(w, http.StatusOK, "application/json", p)
	}
}

// refuse answers with a problem document, as httponce does.
func refuse(w http.ResponseWriter, status int, title string) {
	answer(w, status, "application/problem+json", map[string]any{"title": title, "status": status})
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
