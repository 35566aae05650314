package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
)

// provedShop is a program to prove. It takes orders and writes an invoice for each, or does so wrongly.
func provedShop() {
	at := flag.String("db", "", "URL of the database")
	schema := flag.String("schema", "", "of the tables")
	listen := flag.String("listen", "", "address")
	wrong := flag.String("wrong", "", "what is wrong with it")
	flag.Parse()
	ctx := context.Background()
	switch *wrong {
	case "ends":
		log.Fatal("there is no configuration")
	case "deaf":
		select {}
	}
	db, dialect := openShop(*at)
	store := sqlstore.New(db, dialect, &sqlstore.Options{Schema: *schema})
	must(store.Migrate(ctx))
	table := func(name string) string {
		if *schema != "" {
			name = *schema + "." + name
		}
		return name
	}
	for _, name := range []string{"orders", "invoices"} {
		if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+table(name)+` (item varchar(200))`); err != nil {
			log.Print(err) // PostgreSQL refuses one of two copies that create it at once
		}
	}
	insert := func(into, item string) string {
		return `INSERT INTO ` + table(into) + ` VALUES ('` + strings.ReplaceAll(item, "'", "") + `')`
	}
	events, queue := outbox.New(store, nil), storebroker.New(store, &storebroker.Options{Lease: time.Second})
	customer := func(*http.Request) (string, error) { return "alice", nil }
	orders := httponce.HandlerTx(store, customer, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		var order struct{ Item string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			return err
		}
		if *wrong != "effect before" {
			if _, err := tx.ExecContext(r.Context(), insert("orders", order.Item)); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, "ordered %s", order.Item)
		return events.Put(r.Context(), tx, &broker.Message{Topic: "orders", Body: []byte(order.Item)})
	}, nil)
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		switch *wrong {
		case "random key":
			r.Header.Set("Idempotency-Key", rand.Text())
		case "effect before":
			if item := r.Header.Get("Idempotency-Key"); !known(r.Context(), store, item) {
				_, _ = db.ExecContext(r.Context(), insert("orders", item))
				time.Sleep(20 * time.Millisecond) // as a call to somebody else takes
			}
		case "answers differ":
			w.Header().Set("Location", "/orders/"+rand.Text())
		}
		orders.ServeHTTP(w, r)
	})
	billing := &inbox.Consumer{Name: "billing", Source: queue.Queue("orders"), Handler: inbox.Tx(store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		if *wrong == "parks" {
			return once.Permanent(fmt.Errorf("no invoice for %s", m.Body))
		}
		_, err := tx.ExecContext(ctx, insert("invoices", string(m.Body)))
		return err
	})}
	run := []func(context.Context) error{(&outbox.Relay{Store: store, Publisher: queue.Publisher(), Lease: 500 * time.Millisecond}).Run, billing.Run}
	if *wrong == "no relay" {
		run = run[1:]
	}
	go func() { must(http.ListenAndServe(*listen, nil)) }()
	must(once.RunAll(ctx, run...))
}

func known(ctx context.Context, store once.Store, id string) bool {
	rec, err := store.Get(ctx, once.Key{Scope: "alice", Operation: "http", ID: id})
	return err != nil || rec.Status != once.Absent
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func openShop(at string) (*sql.DB, sqlstore.Dialect) {
	u, err := url.Parse(at)
	must(err)
	driver, dsn, dialect := "sqlite", "file:"+u.Opaque+u.Path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate", sqlstore.SQLite
	switch u.Scheme {
	case "postgres":
		driver, dsn, dialect = "pgx", at, sqlstore.PostgreSQL
	case "mysql":
		config := mysql.NewConfig()
		config.User, config.Net, config.Addr, config.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		config.Passwd, _ = u.User.Password()
		driver, dsn, dialect = "mysql", config.FormatDSN(), sqlstore.MySQL
	}
	db, err := sql.Open(driver, dsn)
	must(err)
	return db, dialect
}
