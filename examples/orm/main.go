// Command orm guards work in a transaction that an ORM began, here Bun on SQLite.
// The ORM exposes the *sql.Tx inside its own transaction. once.InTx claims and
// completes the key in it, so one commit holds the key, the outcome and the rows
// of the ORM.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"
)

// Order is a table of the shop.
type Order struct {
	ID    string `bun:",pk"`
	Cents int
}

var place = &once.Operation[Order]{Name: "place-order"}

func main() {
	dir, err := os.MkdirTemp("", "once-orm")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), filepath.Join(dir, "shop.db")); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, file string) error {
	sqldb, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return err
	}
	db := bun.NewDB(sqldb, sqlitedialect.New())
	defer db.Close()

	store := sqlstore.New(sqldb, sqlstore.SQLite, nil)
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.NewCreateTable().Model((*Order)(nil)).Exec(ctx); err != nil {
		return err
	}

	for range 2 { // the message is delivered twice
		order, err := placeOrder(ctx, db, store, Order{ID: "order-1", Cents: 4999})
		if err != nil {
			return err
		}
		fmt.Println("placed", order.ID, order.Cents)
	}
	count, err := db.NewSelect().Model((*Order)(nil)).Count(ctx)
	fmt.Println("rows:", count)
	return err
}

func placeOrder(ctx context.Context, db *bun.DB, store *sqlstore.Store, order Order) (placed Order, err error) {
	err = db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		placed, err = once.InTx(ctx, store, tx.Tx, place.For(order.ID), func(ctx context.Context) (Order, error) {
			_, err := tx.NewInsert().Model(&order).Exec(ctx)
			return order, err
		})
		return err // Bun rolls back on an error and commits otherwise
	})
	return placed, err
}
