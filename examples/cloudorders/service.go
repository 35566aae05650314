package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
)

// order is the body of a message, whose ordering key is the item.
type order struct {
	ID     string `json:"id"`
	Item   string `json:"item"`
	Pieces int    `json:"pieces"`
}

// service takes pieces from the stock for each order, and announces them.
type service struct {
	db     *sql.DB
	store  *sqlstore.Store
	events *outbox.Outbox[*sql.Tx]
	post   post
}

const schema = `CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL CHECK (pieces >= 0))`

// run handles orders and publishes what was announced, until ctx ends.
func (s *service) run(ctx context.Context) error {
	stock := &inbox.Consumer{Name: "stock", Source: s.post.orders, Handler: inbox.Tx(s.store, s.take)}
	relay := &outbox.Relay{Store: s.store, Publisher: s.post.publisher}
	return once.RunAll(ctx, stock.Run, relay.Run)
}

// take handles an order. One commit holds the key of its message, the row and the
// announcement.
func (s *service) take(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return once.Permanent(fmt.Errorf("the body is no order: %w", err))
	}
	var left int
	err := tx.QueryRowContext(ctx, `UPDATE stock SET pieces = pieces - ?1 WHERE item = ?2 AND pieces >= ?1 RETURNING pieces`,
		o.Pieces, o.Item).Scan(&left)
	if errors.Is(err, sql.ErrNoRows) {
		return once.Permanent(fmt.Errorf("there are no %d pieces of %s", o.Pieces, o.Item))
	}
	if err != nil {
		return err
	}
	return s.events.Put(ctx, tx, &broker.Message{Topic: s.post.shipments, OrderingKey: o.Item, Body: m.Body})
}
