// Command shop is a program for once prove. It takes orders over HTTP and writes an
// invoice for each, in SQLite. With -bug it has a mistake, which the proof finds:
//
//	once migrate up --yes --create --url sqlite:shop.db
//	once prove mark --yes --url sqlite:shop.db
//	once prove --url sqlite:shop.db --requests-from orders.jsonl --requests 60 --for 10s \
//	  --count 'orders=SELECT item, count(*) FROM orders GROUP BY item' \
//	  --count 'invoices=SELECT item, count(*) FROM invoices GROUP BY item' \
//	  -- ./shop -db {{address}} -listen {{listen}} -bug ack-before-commit
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"net/http"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

// The mistakes.
const (
	none            = "none"
	keyPerAttempt   = "key-per-attempt"   // a repeated request has a new key
	rowOutside      = "row-outside"       // the order is written before the transaction with the key
	ackBeforeCommit = "ack-before-commit" // a message is acknowledged before its invoice is written
)

// slowly is how long a step of a mistake takes, as long as a call to somebody else.
const slowly = 50 * time.Millisecond

func main() {
	file := flag.String("db", "shop.db", "file of the database")
	listen := flag.String("listen", "localhost:8080", "address")
	bug := flag.String("bug", none, "a mistake: key-per-attempt, row-outside or ack-before-commit")
	flag.Parse()
	if !slices.Contains([]string{none, keyPerAttempt, rowOutside, ackBeforeCommit}, *bug) {
		log.Fatalf("-bug is %q: see -help", *bug)
	}
	db, err := sql.Open("sqlite", "file:"+*file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	check(err)
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS orders (item TEXT); CREATE TABLE IF NOT EXISTS invoices (item TEXT)`)
	check(err)
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	check(store.Migrate(context.Background()))
	events, queue := outbox.New(store, nil), storebroker.New(store, &storebroker.Options{Lease: time.Second})

	customer := func(*http.Request) (string, error) { return "alice", nil }
	orders := httponce.HandlerTx(store, customer, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		item := r.PathValue("item")
		if *bug != rowOutside {
			if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders VALUES (?)`, item); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, "You ordered %s.\n", item)
		return events.Put(r.Context(), tx, &broker.Message{Topic: "orders", Body: []byte(item)})
	}, nil)
	http.HandleFunc("POST /orders/{item}", func(w http.ResponseWriter, r *http.Request) {
		key := once.Key{Scope: "alice", Operation: "http", ID: r.Header.Get(httponce.KeyHeader)}
		if *bug == keyPerAttempt {
			r.Header.Set(httponce.KeyHeader, rand.Text())
		}
		if rec, err := store.Get(r.Context(), key); *bug == rowOutside && err == nil && rec.Status == once.Absent {
			_, _ = db.ExecContext(r.Context(), `INSERT INTO orders VALUES (?)`, r.PathValue("item"))
			time.Sleep(slowly)
		}
		orders.ServeHTTP(w, r)
	})

	var source broker.Source = queue.Queue("orders")
	if *bug == ackBeforeCommit {
		source = hasty{source}
	}
	billing := &inbox.Consumer{Name: "billing", Source: source,
		Handler: inbox.Tx(store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES (?)`, string(m.Body))
			return err
		})}
	relay := &outbox.Relay{Store: store, Publisher: queue.Publisher(), Lease: time.Second}
	go func() { check(http.ListenAndServe(*listen, nil)) }()
	check(once.RunAll(context.Background(), relay.Run, billing.Run))
}

// hasty acknowledges each message when it comes.
type hasty struct{ broker.Source }

// For implements broker.Subscriber.
func (h hasty) For(keys string) broker.Source { return hasty{h.Source.(broker.Subscriber).For(keys)} }

// Open implements broker.Source.
func (h hasty) Open(ctx context.Context, window int) (broker.Session, error) {
	session, err := h.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return settled{session}, nil
}

type settled struct{ broker.Session }

// Receive implements broker.Session.
func (s settled) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, max)
	if err != nil {
		return nil, err
	}
	err = s.Session.Ack(ctx, ds)
	time.Sleep(slowly)
	return ds, err
}

// Ack implements broker.Session.
func (settled) Ack(context.Context, []broker.Delivery) error { return nil }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
