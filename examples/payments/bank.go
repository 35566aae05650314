package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

// maxCents is the limit of one payment.
const maxCents = 10_000

// bank is the server. Payments and the keys of their requests are in one
// database, so they share a commit.
type bank struct {
	db    *sql.DB
	store *sqlstore.Store
}

// Payment is a payment as the API returns it.
type Payment struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

func openBank(ctx context.Context, file string) (*bank, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	b := &bank{db: db, store: sqlstore.New(db, sqlstore.SQLite, nil)}
	err = b.store.Migrate(ctx)
	if err == nil {
		_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)`)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return b, nil
}

func (b *bank) routes() http.Handler {
	mux := http.NewServeMux()
	// Its own operation lets other routes use the same keys for other requests.
	mux.Handle("POST /payments", httponce.HandlerTx(b.store, customer, b.pay, &httponce.Options{
		Operation:   "pay",
		Fingerprint: httponce.CanonicalJSON,
		MaxBody:     4 << 10,
	}))
	mux.HandleFunc("GET /payments/{id}", b.show)
	return mux
}

// customer returns the caller: the name of the customer and not the API key, so
// that a customer with a new API key can repeat a request.
func customer(r *http.Request) (string, error) {
	names := map[string]string{"alice-secret": "alice", "bob-secret": "bob"} // stands for a table of digests
	name, known := names[r.Header.Get("Api-Key")]
	if !known {
		return "", errors.New("the API key is missing or unknown")
	}
	return name, nil
}

// pay handles a new payment. One commit holds the row, the key and the answer.
// It returns errors of the database. Errors of the client are answers; from
// status 400 on, the rows are rolled back.
func (b *bank) pay(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var p Payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Cents <= 0 {
		refuse(w, http.StatusBadRequest, "A payment is an object with cents, more than 0")
		return nil
	}
	name, err := customer(r)
	if err != nil {
		return err
	}
	added, err := tx.ExecContext(r.Context(), `INSERT INTO payments (customer, cents) VALUES (?, ?)`, name, p.Cents)
	if err != nil {
		return err
	}
	if p.Cents > maxCents {
		refuse(w, http.StatusPaymentRequired, "The payment was declined")
		return nil
	}
	id, err := added.LastInsertId()
	if err != nil {
		return err
	}
	p.ID = strconv.FormatInt(id, 10)
	w.Header().Set("Location", "/payments/"+p.ID)
	answer(w, http.StatusCreated, "application/json", p)
	return nil
}

func (b *bank) show(w http.ResponseWriter, r *http.Request) {
	name, err := customer(r)
	if err != nil {
		refuse(w, http.StatusUnauthorized, "The API key is missing or unknown")
		return
	}
	p := Payment{ID: r.PathValue("id")}
	err = b.db.QueryRowContext(r.Context(), `SELECT cents FROM payments WHERE id = ? AND customer = ?`, p.ID, name).Scan(&p.Cents)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		refuse(w, http.StatusNotFound, "There is no such payment")
	case err != nil:
		slog.ErrorContext(r.Context(), "a payment could not be read", "error", err)
		refuse(w, http.StatusInternalServerError, "The payment could not be read")
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

// forgetOld forgets expired answers and keys until ctx ends.
func (b *bank) forgetOld(ctx context.Context) {
	const atOnce = 500
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if _, err := b.store.Forget(ctx, atOnce); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "old keys were not forgotten; the next round tries again", "error", err)
		}
	}
}
