// Command quickstart takes orders over HTTP and writes one invoice for each.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

const address = "localhost:8080"

func main() {
	db, err := sql.Open("sqlite", "file:shop.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	check(err)
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS orders (item TEXT); CREATE TABLE IF NOT EXISTS invoices (item TEXT)`)
	check(err)
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	check(store.Migrate(context.Background()))
	events, queue := outbox.New(store, nil), storebroker.New(store, nil) // or rabbitbroker, natsbroker, kafkabroker...

	// One commit holds the Idempotency-Key, the order, the message and the response.
	customer := func(*http.Request) (string, error) { return "alice", nil } // stands for your authentication
	http.Handle("POST /orders", httponce.HandlerTx(store, customer, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		item := r.FormValue("item")
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders VALUES (?)`, item); err != nil {
			return err
		}
		log.Printf("an order of %s", item)
		fmt.Fprintf(w, "You ordered %s. The invoice follows.\n", item)
		return events.Put(r.Context(), tx, &broker.Message{Topic: "orders", Body: []byte(item)})
	}, nil))

	// One commit holds the key of the message and the invoice. The ack follows it.
	billing := &inbox.Consumer{Name: "billing", Source: queue.Queue("orders"),
		Handler: inbox.Tx(store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
			log.Printf("an invoice for %s", m.Body)
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES (?)`, string(m.Body))
			return err
		})}
	relay := &outbox.Relay{Store: store, Publisher: queue.Publisher()}
	log.Printf("take orders at http://%s/orders", address)
	go func() { check(http.ListenAndServe(address, nil)) }()
	check(once.RunAll(context.Background(), relay.Run, billing.Run))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
