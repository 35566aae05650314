package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite"
)

// order is the body of an event.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Cents    int    `json:"cents"`
}

func read(m *broker.Message) (o order, err error) {
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return o, once.Permanent(fmt.Errorf("the body is no order: %w", err))
	}
	return o, nil
}

// shop has what the consumers need.
type shop struct {
	js      jetstream.JetStream
	db      *sql.DB
	store   *sqlstore.Store
	events  *natsbroker.Broker
	publish broker.Publisher
	bank    string // address of the payment provider
	outbox  string // directory that stands for the mail server
}

const schema = `CREATE TABLE IF NOT EXISTS reservation (order_id TEXT PRIMARY KEY, item TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS points (customer TEXT PRIMARY KEY, points INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS counted (order_id TEXT NOT NULL)`

func openShop(ctx context.Context, dir string) (*shop, error) {
	path := filepath.Join(dir, "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})) // the story prints the rest
	s := &shop{db: db, store: sqlstore.New(db, sqlstore.SQLite, &sqlstore.Options{Options: once.Options{Logger: logger}}), outbox: filepath.Join(dir, "mail")}
	if err := s.store.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	addresses, err := os.ReadFile(filepath.Join(dir, "addresses"))
	if err != nil {
		return nil, err
	}
	url, bank, _ := strings.Cut(string(addresses), "\n")
	s.bank = bank
	conn, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s.js, s.events = js, natsbroker.New(js, nil)
	s.publish = s.events.Publisher()
	return s, nil
}

// work runs all consumers until ctx ends or the process dies.
func work(ctx context.Context, dir string) error {
	s, err := openShop(ctx, dir)
	if err != nil {
		return err
	}
	all := []func(context.Context) error{s.analyse}
	for name, handler := range map[string]inbox.Handler{
		"payment":    inbox.Do(s.store, payment, s.pay),
		"fulfilment": inbox.Tx(s.store, s.reserve),
		"loyalty":    inbox.Tx(s.store, s.addPoints),
		"mail":       inbox.Do(s.store, mail, s.sendMail),
	} {
		c := &inbox.Consumer{Name: name, Source: s.events.Consumer(stream, name), Handler: handler,
			OnParked: inbox.Pass,                          // a parked letter does not block the customer's next one
			Policy:   once.Policy{Lease: 2 * time.Second}} // short, so that the story does not wait long after a kill
		all = append(all, c.Run)
	}
	return once.RunAll(ctx, all...) // until ctx ends or one of them fails
}

// payment may be sent again: the provider charges once for each key.
var payment = &once.Operation[string]{OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour}

func (s *shop) pay(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
	o, err := read(m)
	if err != nil {
		return "", once.NotDone(err)
	}
	if err := charge(ctx, s.bank, key.String(), o.Cents); err != nil {
		return "", err
	}
	// The ID of the event is the key of the payment. If it is published again
	// after a crash, it is the same event.
	paid := &broker.Message{ID: key.String(), Topic: "order.paid", OrderingKey: o.Customer, Body: m.Body, Time: time.Now()}
	if errs := s.publish.Publish(ctx, []*broker.Message{paid}); errs != nil {
		return "", errs[0]
	}
	return "charged", nil
}

func charge(ctx context.Context, bank, key string, cents int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, bank, strings.NewReader(fmt.Sprint(cents)))
	if err != nil {
		return err
	}
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the bank answers %s", resp.Status)
	}
	return nil
}

// reserve has a second line of defence: the order is the primary key. A
// violation of that is an answer, not a failure.
func (s *shop) reserve(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
	o, err := read(m)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO reservation (order_id, item) VALUES (?, ?)`, o.ID, o.Item)
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed") {
		return inbox.Duplicate(err)
	}
	return err
}

// addPoints relies only on the key of its message.
func (s *shop) addPoints(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
	o, err := read(m)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO points (customer, points) VALUES (?, ?)
		ON CONFLICT (customer) DO UPDATE SET points = points + excluded.points`, o.Customer, o.Cents/100)
	return err
}

// mail is never sent again automatically. After a crash in the middle, a person
// decides.
var mail = &once.Operation[string]{OnUnknown: once.Park}

const slowAnswer = 30 * time.Millisecond

// sendMail hands a letter to a mail server that has no keys and cannot be
// asked. Here it is a file that grows.
func (s *shop) sendMail(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
	o, err := read(m)
	if err != nil {
		return "", once.NotDone(err)
	}
	f, err := os.OpenFile(s.outbox, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", once.NotDone(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, o.ID); err != nil {
		return "", err
	}
	time.Sleep(slowAnswer) // the letter is sent, and a process that dies now does not know it
	return "sent", nil
}

// analyse counts without a guard. A count that is slightly too high costs less
// than a row per message.
func (s *shop) analyse(ctx context.Context) error {
	for ctx.Err() == nil {
		session, err := s.events.Consumer(stream, "analytics").Open(ctx, 32)
		if err != nil {
			continue
		}
		for {
			ds, err := session.Receive(ctx, 32)
			if err != nil {
				break
			}
			for _, d := range ds {
				o, err := read(d.Message)
				if err == nil {
					_, err = s.db.ExecContext(ctx, `INSERT INTO counted (order_id) VALUES (?)`, o.ID)
				}
				if err != nil {
					log := errors.Join(err, session.Return(ctx, ds, time.Second))
					slog.Warn("analytics", "error", log)
					break
				}
			}
			_ = session.Ack(ctx, ds) // an unacknowledged message is counted twice, which is acceptable here
		}
		_ = session.Close(context.WithoutCancel(ctx))
	}
	return nil
}

// published returns the number of messages in the stream, including copies.
func (s *shop) published(ctx context.Context) (n int, err error) {
	at, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	info, err := at.Info(ctx, jetstream.WithSubjectFilter("order.placed"))
	if err != nil {
		return 0, err
	}
	return int(info.State.Subjects["order.placed"]), nil
}
