// Package year is a shop that takes orders over HTTP, charges them at a bank, and
// writes receipts. Its test lets it live through a year.
//
//	go test -v ./year
package year

import (
	"context"
	"io"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
)

// Shop is what the shop needs from outside. A database driver is Tx: in production
// pgx.Tx, in the test *memstore.Tx.
type Shop[Tx any] struct {
	Store  once.TxStore[Tx]
	Events *outbox.Outbox[Tx]

	// Insert inserts a row of an order into a table.
	Insert func(ctx context.Context, tx Tx, table, order string) error

	// Charge charges an order at the bank, which honours keys.
	Charge func(ctx context.Context, order, key string) error
}

// Handler takes orders: the row and the message about it are one commit.
func (s *Shop[Tx]) Handler() http.Handler {
	caller := func(*http.Request) (string, error) { return "anybody", nil }
	return httponce.HandlerTx(s.Store, caller, func(w http.ResponseWriter, r *http.Request, tx Tx) error {
		order, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if err := s.Insert(r.Context(), tx, "order", string(order)); err != nil {
			return err
		}
		if err := s.Events.Put(r.Context(), tx, &broker.Message{ID: string(order), Topic: "orders"}); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		_, err = io.WriteString(w, "thank you")
		return err
	}, &httponce.Options{Operation: "order"})
}

// Billing charges the orders.
func (s *Shop[Tx]) Billing(orders broker.Source) *inbox.Consumer {
	op := &once.Operation[struct{}]{OnUnknown: once.Resend}
	return &inbox.Consumer{Name: "billing", Source: orders,
		Handler: inbox.Do(s.Store, op, func(ctx context.Context, key once.Key, m *broker.Message) (none struct{}, err error) {
			err = s.Charge(ctx, m.ID, key.String())
			if once.IsDialError(err) {
				err = once.NotDone(inbox.Unavailable(err))
			}
			return none, err
		})}
}

// Receipts writes a receipt for each order.
func (s *Shop[Tx]) Receipts(orders broker.Source) *inbox.Consumer {
	return &inbox.Consumer{Name: "receipts", Source: orders,
		Handler: inbox.Tx(s.Store, func(ctx context.Context, tx Tx, m *broker.Message) error {
			return s.Insert(ctx, tx, "receipt", m.ID)
		})}
}
