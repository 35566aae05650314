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
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// provedShop is a program to prove. It takes orders and writes an invoice for each, or does so wrongly.
func provedShop() {
	at := flag.String("db", "", "URL of the database")
	schema := flag.String("schema", "", "of the tables")
	prefix := flag.String("prefix", "", "of the keys in Redis")
	listen := flag.String("listen", "", "address")
	wrong := flag.String("wrong", "", "what is wrong with it")
	flag.Parse()
	switch *wrong {
	case "ends":
		log.Fatal("there is no configuration")
	case "deaf":
		select {}
	}
	switch scheme, _, _ := strings.Cut(*at, ":"); scheme {
	case "nats":
		natsShop(*at, *listen, *wrong)
	case "redis":
		redisShop(*at, *prefix).run(*listen, *wrong)
	default:
		sqlShop(*at, *schema).run(*listen, *wrong)
	}
}

// shop keeps its orders and invoices in the database of its store.
type shop[Tx any] struct {
	store interface {
		once.TxStore[Tx]
		store.Outbox[Tx]
	}
	insert  func(ctx context.Context, tx Tx, into, item string) error
	outside func(ctx context.Context, into, item string) error // the transaction
}

func sqlShop(at, schema string) shop[*sql.Tx] {
	ctx := context.Background()
	db, dialect := openShop(at)
	store := sqlstore.New(db, dialect, &sqlstore.Options{Schema: schema})
	must(store.Migrate(ctx))
	table := func(name string) string {
		if schema != "" {
			name = schema + "." + name
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
	return shop[*sql.Tx]{store: store,
		insert: func(ctx context.Context, tx *sql.Tx, into, item string) error {
			_, err := tx.ExecContext(ctx, insert(into, item))
			return err
		},
		outside: func(ctx context.Context, into, item string) error {
			_, err := db.ExecContext(ctx, insert(into, item))
			return err
		}}
}

// redisShop counts the orders of each item in a hash.
func redisShop(at, prefix string) shop[*redisstore.Tx] {
	options, err := redis.ParseURL(at)
	must(err)
	client := redis.NewClient(options)
	return shop[*redisstore.Tx]{store: redisstore.New(client, &redisstore.Options{Prefix: prefix}),
		insert: func(ctx context.Context, tx *redisstore.Tx, into, item string) error {
			return tx.HIncrBy(ctx, prefix+into, item, 1).Err()
		},
		outside: func(ctx context.Context, into, item string) error {
			return client.HIncrBy(ctx, prefix+into, item, 1).Err()
		}}
}

func customer(*http.Request) (string, error) { return "alice", nil }

// takeOrders answers requests for orders.
func takeOrders(listen, wrong string, orders http.Handler) {
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		switch wrong {
		case "key per attempt":
			r.Header.Set("Idempotency-Key", rand.Text())
		case "answers differ":
			w.Header().Set("Location", "/orders/"+rand.Text())
		}
		orders.ServeHTTP(w, r)
	})
	must(http.ListenAndServe(listen, nil))
}

func itemOf(r *http.Request) (string, error) {
	var order struct{ Item string }
	err := json.NewDecoder(r.Body).Decode(&order)
	return order.Item, err
}

func (s shop[Tx]) run(listen, wrong string) {
	events, queue := outbox.New(s.store, nil), storebroker.New(s.store, &storebroker.Options{Lease: time.Second})
	orders := httponce.HandlerTx(s.store, customer, func(w http.ResponseWriter, r *http.Request, tx Tx) error {
		item, err := itemOf(r)
		if err != nil {
			return err
		}
		if wrong != "row outside" {
			if err := s.insert(r.Context(), tx, "orders", item); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, "ordered %s", item)
		return events.Put(r.Context(), tx, &broker.Message{Topic: "orders", Body: []byte(item)})
	}, nil)
	var source broker.Source = queue.Queue("orders")
	switch wrong {
	case "row outside":
		orders = s.rowOutside(orders)
	case "ack before commit":
		source = ackFirst{source}
	}
	go takeOrders(listen, wrong, orders)
	billing := &inbox.Consumer{Name: "billing", Source: source, Handler: inbox.Tx(s.store, func(ctx context.Context, tx Tx, m *broker.Message) error {
		if wrong == "parks" {
			return once.Permanent(fmt.Errorf("no invoice for %s", m.Body))
		}
		return s.insert(ctx, tx, "invoices", string(m.Body))
	})}
	run := []func(context.Context) error{(&outbox.Relay{Store: s.store, Publisher: queue.Publisher(), Lease: 500 * time.Millisecond}).Run, billing.Run}
	if wrong == "no relay" {
		run = run[1:]
	}
	must(once.RunAll(context.Background(), run...))
}

// callTime is how long a wrong program can be killed between two steps, as long as a
// call to somebody else may take.
const callTime = 50 * time.Millisecond

// rowOutside writes the order of a new key before the transaction.
func (s shop[Tx]) rowOutside(orders http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("Idempotency-Key"); !known(r.Context(), s.store, id) {
			_ = s.outside(r.Context(), "orders", id)
			time.Sleep(callTime)
		}
		orders.ServeHTTP(w, r)
	})
}

// ackFirst acknowledges messages before they are handled.
type ackFirst struct{ broker.Source }

// For implements broker.Subscriber.
func (s ackFirst) For(keys string) broker.Source {
	return ackFirst{s.Source.(broker.Subscriber).For(keys)}
}

func (s ackFirst) Open(ctx context.Context, window int) (broker.Session, error) {
	session, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return acked{session}, nil
}

type acked struct{ broker.Session }

func (s acked) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, max)
	if err != nil {
		return nil, err
	}
	err = s.Session.Ack(ctx, ds)
	time.Sleep(10 * callTime) // what the program does most of the time, so that a kill meets it
	return ds, err
}

func (s acked) Ack(context.Context, []broker.Delivery) error { return nil }

// stream has the orders of the shop in NATS, which cannot commit them together with
// the key. It drops a message whose ID it knows, so a request may be handled again.
const stream = "orders"

func natsShop(at, listen, wrong string) {
	ctx, js, bucket := context.Background(), openStream(at), strings.TrimPrefix(mustParse(at).Path, "/")
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, Duplicates: time.Hour})
	must(err)
	options := &httponce.Options{OnUnknown: once.Resend, Policy: once.Policy{Lease: time.Second}}
	takeOrders(listen, wrong, httponce.Handler(natsstore.New(js, &natsstore.Options{Bucket: bucket}), customer, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		item, err := itemOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		claim, _ := once.ClaimFrom(r.Context())
		id := claim.Key.String()
		if wrong == "no key" {
			id = rand.Text()
		}
		if _, err := js.Publish(r.Context(), stream, []byte(item), jetstream.WithMsgID(id)); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		if wrong == "no key" {
			time.Sleep(callTime)
		}
		fmt.Fprintf(w, "ordered %s", item)
	}), options))
}

func openStream(at string) jetstream.JetStream {
	u := mustParse(at)
	token, _ := u.User.Password()
	conn, err := nats.Connect("nats://"+u.Host, nats.Token(token), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	must(err)
	js, err := jetstream.New(conn)
	must(err)
	return js
}

func mustParse(at string) *url.URL {
	u, err := url.Parse(at)
	must(err)
	return u
}

// provedCount prints how many orders the shop has of each item, in a store without tables.
func provedCount() {
	at, prefix := flag.String("db", "", "URL of the store"), flag.String("prefix", "", "of the keys in Redis")
	flag.Parse()
	ctx, counts := context.Background(), map[string]string{}
	if strings.HasPrefix(*at, "redis:") {
		options, err := redis.ParseURL(*at)
		must(err)
		counts, err = redis.NewClient(options).HGetAll(ctx, *prefix+flag.Arg(0)).Result()
		must(err)
	} else {
		orders, err := openStream(*at).Stream(ctx, stream)
		must(err)
		for n := uint64(1); n <= orders.CachedInfo().State.LastSeq; n++ {
			m, err := orders.GetMsg(ctx, n)
			must(err)
			fmt.Println(string(m.Data), 1)
		}
	}
	for item, n := range counts {
		fmt.Println(item, n)
	}
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
	u := mustParse(at)
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
