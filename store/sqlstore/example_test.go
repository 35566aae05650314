package sqlstore_test

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// A transaction that other code began, an ORM for example, may hold the key and
// the rows.
func ExampleStore_inATransactionOfYourOwn() {
	db, _ := sql.Open("sqlite", "file:once.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	pay := &once.Operation[string]{Name: "pay"}

	handle := func(ctx context.Context, tx *sql.Tx, orderID string) (string, error) {
		return once.InTx(ctx, store, tx, pay.For(orderID), func(ctx context.Context) (string, error) {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = 1 WHERE id = ?", orderID)
			return "receipt " + orderID, err
		})
	}
	_ = handle
}
