package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// In a store without Schema, a handler must not change the search_path.
func TestAHandlerThatMovesTheSearchPath(t *testing.T) {
	for _, text := range []string{"SET LOCAL search_path = %s", "SELECT set_config('search_path', '%s', true)"} {
		admin := pool(t, server(t))
		a, b := schema(t, admin), schema(t, admin)
		p := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = a })
		s := pgstore.New(p, nil)
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := pgstore.New(p, &pgstore.Options{Schema: b}).Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		op := &once.Operation[int]{Name: "pay", Speculative: true}
		for range 2 {
			_, err := once.DoTx(t.Context(), s, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
				_, err := tx.Exec(ctx, fmt.Sprintf(text, b))
				return 7, err
			})
			wantError(t, err, once.ErrInvalid)
		}
	}
}

// If the deadline of a handler ends its first statement, the caller gets the
// error that the handler returns.
func TestTheHandlersErrorAfterItsDeadlineIsKept(t *testing.T) {
	f := newFixture(t)
	mine := errors.New("too slow today")
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	_, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := tx.Exec(short, `SELECT pg_sleep(5)`); err == nil {
			t.Error("no error")
		}
		return 0, once.Permanent(mine)
	})
	if !errors.Is(err, mine) {
		t.Error("the handler's error is gone")
	}
}

func TestDriverBytesAreRefused(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	_, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		var raw pgtype.DriverBytes
		err := tx.QueryRow(ctx, `SELECT repeat('x', 20)::bytea`).Scan(&raw)
		if err == nil {
			t.Error("pgx refuses this")
		}
		return 1, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// If the first statements of two handlers deadlock, both succeed in the end.
func TestADeadlockOfFirstStatements(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	must(t, f.admin, `CREATE TABLE `+f.schema+`.account (id int PRIMARY KEY, n int); INSERT INTO `+f.schema+`.account VALUES (1,0),(2,0)`)
	ready := make(chan struct{}, 2)
	gate := make(chan struct{})
	out := make(chan error, 2)
	for i := range 2 {
		first := true
		go func() {
			_, err := once.DoTx(t.Context(), f.Store, op.For(fmt.Sprint(i)), func(ctx context.Context, tx pgx.Tx) (int, error) {
				_, err := tx.Exec(ctx, `UPDATE `+f.schema+`.account SET n = n + 1 WHERE id = $1`, i+1)
				if err != nil {
					return 0, err
				}
				if first {
					first = false
					ready <- struct{}{}
					<-gate
				}
				_, err = tx.Exec(ctx, `UPDATE `+f.schema+`.account SET n = n + 1 WHERE id = $1`, 2-i)
				return 1, err
			})
			out <- err
		}()
	}
	<-ready
	<-ready
	close(gate)
	for range 2 {
		if err := <-out; err != nil {
			t.Error(err)
		}
	}
	var sum int
	_ = f.admin.QueryRow(t.Context(), `SELECT sum(n) FROM `+f.schema+`.account`).Scan(&sum)
	if sum != 4 {
		t.Error(sum)
	}
}
