// Command payment is a payment handler that cannot charge twice. It charges at a
// provider that honours idempotency keys, and writes the order into SQLite. The
// first delivery charges, and then its database fails. The second delivery skips
// the charge and writes the order. The third one finds everything done.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

type charge struct{ ID string }

// Each kind of work is declared once: its name, and the choice for unknown
// outcomes.
var (
	pay        = &once.Operation[string]{Name: "pay"}
	chargeCard = &once.Operation[charge]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour}
)

type shop struct {
	store *sqlstore.Store
	full  bool // the disk is full during the first delivery
}

// handle handles one delivery of an order.
func (s *shop) handle(ctx context.Context, orderID string) (string, error) {
	work := pay.For(orderID)
	paid, err := once.Do(ctx, s.store, chargeCard.Under(work.Key()), func(ctx context.Context, key once.Key) (charge, error) {
		return chargeAtProvider(key.String(), 4999)
	})
	if err != nil {
		return "", err
	}
	return once.DoTx(ctx, s.store, work, func(ctx context.Context, tx *sql.Tx) (string, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, charge) VALUES (?, ?)`, orderID, paid.ID); err != nil {
			return "", err
		}
		if s.full {
			return "", errors.New("disk full")
		}
		return "receipt for " + orderID, nil
	})
}

// chargeAtProvider stands for a call to a payment provider.
func chargeAtProvider(idempotencyKey string, cents int) (charge, error) {
	fmt.Printf("charged %d under %s\n", cents, idempotencyKey)
	return charge{ID: "ch_1"}, nil
}

func main() {
	dir, err := os.MkdirTemp("", "once-payment")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), filepath.Join(dir, "shop.db")); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return err
	}
	defer db.Close()
	s := &shop{store: sqlstore.New(db, sqlstore.SQLite, nil)}
	if err := s.store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, charge TEXT NOT NULL)`); err != nil {
		return err
	}
	for delivery := 1; delivery <= 3; delivery++ {
		s.full = delivery == 1
		receipt, err := s.handle(ctx, "order-1")
		fmt.Printf("delivery %d: %q, %v\n", delivery, receipt, err)
	}
	return nil
}
