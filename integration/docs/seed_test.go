//go:build linux

package docs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
)

// schemas are the PostgreSQL schemas that the documents use.
var schemas = []string{"public", "payments"}

// seed creates the tables in all databases and fills those of PostgreSQL with
// the records that the documents mention.
func (w *world) seed(t *testing.T) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), w.postgres)
	must(t, err)
	t.Cleanup(pool.Close)
	w.conn, err = pgx.Connect(t.Context(), w.postgres)
	must(t, err)
	t.Cleanup(func() { _ = w.conn.Close(context.Background()) })
	w.exec(t, "CREATE SCHEMA payments")
	var database string
	must(t, w.conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&database))
	w.exec(t, "ALTER DATABASE "+database+" SET synchronous_commit = off") // for the doctor to find
	for _, schema := range schemas {
		s := pgstore.New(pool, &pgstore.Options{Schema: schema})
		must(t, s.Migrate(t.Context()))
		seedKeys(t, s)
		seedShelf(t, s)
		seedOutbox(t, pool, s)
		w.exec(t, fmt.Sprintf("UPDATE %s.once_record SET created = created - 7200e6, updated = updated - 7200e6", schema))
		w.exec(t, fmt.Sprintf("UPDATE %s.once_consumer SET seen = seen - 600e6 WHERE name = 'mailing'", schema)) // its processes have ended
		w.remember(t, schema)
	}
	must(t, pgstore.New(pool, &pgstore.Options{Prefix: "keys_", Partition: 24 * time.Hour}).Migrate(t.Context())) // of docs/partitions.md
	s := w.shell(t)
	w.mustRun(t, s, "once migrate up --yes --url \"$SHOP_URL\"")
	w.mustRun(t, s, w.here("once migrate up --yes --url 'mysql://ops:${SHOP_PASSWORD}@db.internal:3306/shop?tls=true&prefix=shop_'"))
}

func seedKeys(t *testing.T, s *pgstore.Store) {
	t.Helper()
	pay := &once.Operation[map[string]string]{Name: "pay", OnUnknown: once.Park}
	_, err := once.Do(t.Context(), s, pay.For("order-4710"), func(context.Context, once.Key) (map[string]string, error) {
		return map[string]string{"charge": "ch_1"}, nil
	})
	must(t, err)
	for _, k := range []struct {
		key    once.Key
		to     once.Status
		reason string
	}{
		{once.Key{Operation: "pay/charge", ID: "order-4711"}, once.Unknown, ""}, // as if its lease had lapsed
		{once.Key{Scope: "tenant 7", Operation: "pay", ID: "order-80"}, once.Parked, "the provider has forgotten the key"},
		{once.Key{Operation: "mail", ID: "welcome"}, once.Parked, "nobody can be asked"},
	} {
		rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k.key, Owner: [16]byte{1}}, Lease: time.Hour})
		must(t, err)
		must(t, s.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: k.key, Owner: rec.Owner, Attempt: rec.Attempt},
			Status: k.to, Reason: k.reason}))
	}
}

func seedShelf(t *testing.T, s *pgstore.Store) {
	t.Helper()
	_, err := s.Register(t.Context(), store.Consumer{Name: "billing", Source: "queue orders"})
	must(t, err)
	_, err = s.Register(t.Context(), store.Consumer{Name: "mailing", Source: "queue mails"})
	must(t, err)
	for _, id := range []string{"order-4711", "order-80"} {
		must(t, s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked, Attempts: 10, Reason: "no such customer",
			Message: broker.Message{ID: id, Topic: "orders", OrderingKey: id, Body: []byte("{}")}}}))
	}
	must(t, s.SetPosition(t.Context(), store.Position{Consumer: "ledger", Partition: "orders/0", Log: "Xq2.1", Offset: 41}))
}

// seedOutbox puts messages, the first from the work of a key and two of them
// stuck, and gives the lanes to two relays.
func seedOutbox(t *testing.T, pool *pgxpool.Pool, s *pgstore.Store) {
	t.Helper()
	put := outbox.New(s, nil)
	pay := &once.Operation[map[string]string]{Name: "pay"}
	_, err := once.DoTx(t.Context(), s, pay.For("order-11"), func(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
		return map[string]string{"charge": "ch_2"}, put.Put(ctx, tx, &broker.Message{ID: "o1", Topic: "order.paid", OrderingKey: "c-7"})
	})
	must(t, err)
	// Another one was published, and a consumer has handled it.
	mailing := &once.Operation[bool]{Name: "mailing"}
	_, err = once.DoTx(t.Context(), s, mailing.For("o0").CausedBy(pay.For("order-11").Key().String()),
		func(context.Context, pgx.Tx) (bool, error) { return true, nil })
	must(t, err)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	must(t, put.Put(t.Context(), tx, &broker.Message{ID: "o2", Topic: "order.paid", OrderingKey: "c-7"},
		&broker.Message{ID: "w1", Topic: "mail.welcome"}))
	must(t, tx.Commit(t.Context()))
	pending, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Pending, Limit: 10})
	must(t, err)
	var stuck []store.Outgoing
	for _, m := range pending {
		if m.Message.Topic == "order.paid" {
			m.Attempts, m.Reason = 10, "no such topic"
			stuck = append(stuck, m)
		}
	}
	_, err = s.MoveOutgoing(t.Context(), [16]byte{}, stuck, store.Stuck)
	must(t, err)
	for relay, lanes := range map[byte][]int{0x70: {0, 1, 2, 3, 4, 5, 6, 7}, 0xa9: {8, 9, 10, 11, 12, 13, 14, 15}} {
		_, err := s.LeaseLanes(t.Context(), [16]byte{relay, 15: 1}, 24*time.Hour, lanes)
		must(t, err)
	}
}

// remember saves the rows of a schema for reset.
func (w *world) remember(t *testing.T, schema string) {
	t.Helper()
	rows, err := w.conn.Query(t.Context(), `SELECT table_name FROM information_schema.tables
		WHERE table_schema = $1 AND table_name LIKE 'once\_%' ORDER BY table_name`, schema)
	must(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	w.exec(t, "CREATE SCHEMA kept_"+schema)
	var reset strings.Builder
	for _, table := range tables {
		w.exec(t, fmt.Sprintf("CREATE TABLE kept_%s.%s AS TABLE %s.%s", schema, table, schema, table))
		fmt.Fprintf(&reset, "DELETE FROM %s.%s; INSERT INTO %s.%s OVERRIDING SYSTEM VALUE TABLE kept_%s.%s;\n",
			schema, table, schema, table, schema, table)
	}
	w.before += reset.String()
}

// reset restores the rows that a command has changed.
func (w *world) reset(t *testing.T) {
	t.Helper()
	w.exec(t, w.before)
}
