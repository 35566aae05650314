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
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store/sqlstore"
)

// Shop is the environment that both services share: a database with a store, a
// broker, a payment provider, a mail server, and the points at which a process
// can be killed.
type Shop struct {
	db        *sql.DB
	store     *sqlstore.Store
	events    remote
	publisher broker.Publisher
	provider  string
	keep      time.Duration // of keys; 0: the default
	ask       asker
}

// asker asks what to do with an order at a point; lose means that the next step
// is to be lost.
type asker func(at point, consumer string, o Order, m *broker.Message) (lose bool)

// Receipt is the answer of the payment provider.
type Receipt struct {
	ChargeID string
}

// topic is the topic of orders.
const topic = "order.placed"

func openShop(where setup, ask asker) (*Shop, error) {
	db, err := sql.Open("sqlite", where.Database)
	if err != nil {
		return nil, err
	}
	events := remote{where.Broker}
	s := &Shop{db: db, store: sqlstore.New(db, sqlstore.SQLite, quiet), events: events, provider: where.Provider, keep: where.Keep, ask: ask}
	s.publisher = &tappedPublisher{events, ask}
	return s, nil
}

// dataSource returns the name of a database for several processes. They wait
// for each other's locks, readers do not wait, and commits are durable.
func dataSource(dir, name string) string {
	file := url.URL{Path: filepath.ToSlash(filepath.Join(dir, name+".db"))}
	return "file:" + file.EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
}

// The tables of the shop. The last three are the notes of the service by hand;
// with once, the store has the keys. No index is unique, so that a second row
// counts as a second order instead of being an error.
const tables = `
CREATE TABLE orders   (number INTEGER PRIMARY KEY, id TEXT NOT NULL, customer TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE account  (customer TEXT PRIMARY KEY, points INTEGER NOT NULL);
CREATE TABLE charged  (id TEXT NOT NULL, charge TEXT NOT NULL);
CREATE TABLE credited (id TEXT NOT NULL);
CREATE TABLE mailed   (id TEXT NOT NULL);
CREATE INDEX orders_id   ON orders (id);
CREATE INDEX charged_id  ON charged (id);
CREATE INDEX credited_id ON credited (id);
CREATE INDEX mailed_id   ON mailed (id);`

// source returns the source of a consumer.
func (s *Shop) source(consumer string) broker.Source {
	return &tappedSource{queue{s.events, consumer}, consumer, s.ask}
}

// insert writes an order.
func (s *Shop) insert(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, cents) VALUES (?, ?, ?)`, o.ID, o.Customer, o.Cents)
	if err == nil {
		s.ask(atInsert, "", o, nil)
	}
	return err
}

// tell returns the message of an order.
func tell(id string, o Order) (*broker.Message, error) {
	body, err := json.Marshal(o)
	return &broker.Message{ID: id, Topic: topic, OrderingKey: o.Customer, Body: body, Time: time.Now()}, err
}

// read returns the order of a message. A message without one cannot be handled.
func read(m *broker.Message) (o Order, err error) {
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return o, once.Permanent(fmt.Errorf("the message is not an order: %w", err))
	}
	return o, nil
}

// charge asks the provider to charge the customer. An empty key sends none.
func (s *Shop) charge(ctx context.Context, key string, o Order) (receipt Receipt, err error) {
	if err := s.post(ctx, "/charge", key, o, &receipt); err != nil {
		return receipt, err
	}
	s.ask(atCharge, "", o, nil)
	return receipt, nil
}

// credit adds the points of an order to the customer's account.
func (s *Shop) credit(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO account (customer, points) VALUES (?, ?)
		ON CONFLICT (customer) DO UPDATE SET points = points + excluded.points`, o.Customer, o.Cents)
	if err == nil {
		s.ask(atTransaction, "", o, nil)
	}
	return err
}

// letter sends the customer a letter. The mail server has no keys and cannot be
// asked.
func (s *Shop) letter(ctx context.Context, o Order) error {
	if err := s.post(ctx, "/letter", "", o, nil); err != nil {
		return err
	}
	s.ask(atLetter, "", o, nil)
	return nil
}

func (s *Shop) post(ctx context.Context, path, key string, o Order, into any) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("%s returned %s: %s", path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
