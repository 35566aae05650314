// Command program uses the modules of a release. The proof copies it into a
// module of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/pgstore"
)

func main() {
	if err := errors.Join(charge(context.Background()), pay(context.Background())); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// charge does a unit of work twice, which has its effect once.
func charge(ctx context.Context) error {
	store := memstore.New(nil)
	charge := &once.Operation[int]{Name: "charge", OnUnknown: once.Park}
	charges := 0
	for range 2 {
		_, err := once.Do(ctx, store, charge.For("order-1"), func(context.Context, once.Key) (int, error) {
			charges++
			return 4999, nil
		})
		if err != nil {
			return err
		}
	}
	if charges != 1 {
		return fmt.Errorf("charged %d times", charges)
	}
	return nil
}

// pay needs no server: a key without an ID is refused before the store asks it.
func pay(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, "postgres://localhost:1/shop")
	if err != nil {
		return err
	}
	defer pool.Close()
	pay := &once.Operation[string]{Name: "pay"}
	_, err = once.DoTx(ctx, pgstore.New(pool, nil), pay.For(""), func(context.Context, pgx.Tx) (string, error) {
		return "", errors.New("ran without a key")
	})
	if !errors.Is(err, once.ErrInvalid) {
		return fmt.Errorf("DoTx without an ID returned %v", err)
	}
	return nil
}
