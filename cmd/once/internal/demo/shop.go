package demo

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver

	"github.com/effectively-once/once/store/sqlstore"
)

// Shop is what both handlers work with: a database, a store in it, and a payment provider.
// What they share is here, and so are the points where they can be killed.
type Shop struct {
	db       *sql.DB
	store    *sqlstore.Store
	provider string
	at       func(point)
}

// Receipt is the answer of the payment provider.
type Receipt struct {
	ChargeID string
}

func openShop(where setup) (*Shop, error) {
	db, err := sql.Open("sqlite", where.Database)
	if err != nil {
		return nil, err
	}
	return &Shop{
		db:       db,
		store:    sqlstore.New(db, sqlstore.SQLite, nil),
		provider: where.Provider,
		at:       func(point) {},
	}, nil
}

// dataSource names a database for several processes: they wait for each other's locks,
// readers do not wait at all, and a commit is on the disk.
func dataSource(dir, name string) string {
	file := url.URL{Path: filepath.ToSlash(filepath.Join(dir, name+".db"))}
	return "file:" + file.EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
}

const tables = `
CREATE TABLE orders  (id TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL, charge TEXT NOT NULL);
CREATE INDEX orders_customer ON orders (customer);
CREATE TABLE account (customer TEXT PRIMARY KEY, balance INTEGER NOT NULL);`

// migrate makes the tables, with an account for each customer.
func (s *Shop) migrate(ctx context.Context, orders []Order) error {
	if err := s.store.Migrate(ctx); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, tables); err != nil {
		return err
	}
	for _, o := range orders {
		if _, err := tx.ExecContext(ctx, `INSERT INTO account (customer, balance) VALUES (?, 0)`, o.Customer); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// charge asks the provider for the customer's money. An empty key asks for it without one.
func (s *Shop) charge(ctx context.Context, key string, o Order) (Receipt, error) {
	s.at(beforeCharge)
	receipt, err := s.post(ctx, key, o)
	if err != nil {
		return receipt, err
	}
	s.at(afterCharge)
	return receipt, nil
}

func (s *Shop) post(ctx context.Context, key string, o Order) (receipt Receipt, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return receipt, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider, bytes.NewReader(body))
	if err != nil {
		return receipt, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return receipt, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return receipt, fmt.Errorf("the payment provider says %s: %s", resp.Status, text)
	}
	return receipt, json.NewDecoder(resp.Body).Decode(&receipt)
}

// known reports whether the order has been handled.
func (s *Shop) known(ctx context.Context, o Order) (known bool, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM orders WHERE id = ?)`, o.ID).Scan(&known)
	return known, err
}

// book writes the order and adds its amount to the customer's balance.
func (s *Shop) book(ctx context.Context, tx *sql.Tx, o Order, r Receipt) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, cents, charge) VALUES (?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET charge = excluded.charge`, o.ID, o.Customer, o.Cents, r.ChargeID)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE account SET balance = balance + ? WHERE customer = ?`, o.Cents, o.Customer)
	if err != nil {
		return err
	}
	s.at(inTransaction)
	return nil
}
