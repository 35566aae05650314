package pgstore_test

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// One commit holds the key, its outcome and the rows of the work.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	store := pgstore.New(pool, nil)
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	pay := &once.Operation[string]{Name: "pay"}
	receipt, err := once.DoTx(ctx, store, pay.For("order-17"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, `UPDATE account SET balance = balance - 4999 WHERE owner = $1`, "ann")
		return "receipt-17", err
	})
	fmt.Println(receipt, err)
}
