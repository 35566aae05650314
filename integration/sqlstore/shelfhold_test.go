package sqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// The handler takes longer than the lease of its message on the shelf, which is
// renewed beside its transaction. SQLite has one writer at a time, so there the
// transaction itself keeps the others away.
func TestAMessageFromTheShelfIsKeptFromOthersDuringALongTransaction(t *testing.T) {
	all := append([]engine{{"postgres at repeatable read", sqlstore.PostgreSQL, freshPostgres}}, engines...)
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			longOnTheShelf(t, e)
		})
	}
}

func longOnTheShelf(t *testing.T, e engine) {
	var settings []string
	if strings.Contains(e.name, "repeatable") {
		settings = []string{"default_transaction_isolation=repeatable read"}
	}
	open := e.fresh(t)
	db := open(t)
	s := sqlstore.New(db, e.dialect, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	must(t, s.Shelve(t.Context(), []store.Shelved{aside("m0", "")}))
	from := membroker.New(nil)
	var calls atomic.Int64
	for range 2 {
		of := sqlstore.New(open(t, settings...), e.dialect, nil)
		c := &inbox.Consumer{Name: "billing", Source: from.Queue("orders")}
		c.Handler = inbox.Tx(of, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
			calls.Add(1)
			var n int // what it reads is the snapshot of its transaction
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM effect").Scan(&n); err != nil {
				return err
			}
			if err := effect(ctx, tx, m.ID); err != nil {
				return err
			}
			select {
			case <-time.After(12 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			must(t, <-ended)
		})
	}
	proof.Await(t, "nothing is left on the shelf", func() bool {
		left, err := s.Shelved(t.Context(), store.ShelfQuery{})
		must(t, err)
		return len(left) == 0
	})
	var n int
	must(t, db.QueryRow("SELECT count(*) FROM effect").Scan(&n))
	if n != 1 || calls.Load() > int64(1+2*len(settings)) { // a snapshot lacks the renewals: each process learns that once
		t.Errorf("%d effects, %d calls", n, calls.Load())
	}
}
