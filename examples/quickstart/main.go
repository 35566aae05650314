// Command quickstart takes orders over HTTP and writes one invoice for each.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

func main() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:shop.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	check(err)
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS orders (item TEXT); CREATE TABLE IF NOT EXISTS invoices (item TEXT)`)
	check(err)
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	check(store.Migrate(ctx))
	events, queue := outbox.New(store, nil), membroker.New(nil) // or rabbitbroker, natsbroker, kafkabroker

	// One commit holds the Idempotency-Key, the order, the message and the response.
	customer := func(r *http.Request) (string, error) { return "alice", nil } // stands for your authentication
	http.Handle("POST /orders", httponce.HandlerTx(store, customer, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		item := r.FormValue("item")
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders VALUES (?)`, item); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		return events.Put(r.Context(), tx, &broker.Message{Topic: "orders", Body: []byte(item)})
	}, nil))
	relay := &outbox.Relay{Store: store, Publisher: queue.Publisher()}

	// One commit holds the message's key and the invoice. The ack follows the commit.
	billing := &inbox.Consumer{Name: "billing", Source: queue.Queue("orders"),
		Handler: inbox.Tx(store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES (?)`, string(m.Body))
			return err
		})}
	go func() { check(http.ListenAndServe(cmp.Or(os.Getenv("ADDR"), "localhost:8080"), nil)) }()
	check(once.RunAll(ctx, relay.Run, billing.Run))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
