package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Transactions that lock two rows in opposite orders keep running into
// deadlocks, and those that read what others write into serialization failures.
// All of them succeed in the end.
func TestConflictingTransactionsAllSucceed(t *testing.T) {
	for name, c := range map[string]struct {
		level pgx.TxIsoLevel
		add   string
	}{
		"deadlocks":              {"", `UPDATE account SET n = n + 1 WHERE id = $1`},
		"serialization failures": {pgx.Serializable, `UPDATE account SET n = (SELECT max(n) FROM account) + 1 WHERE id = $1`},
	} {
		t.Run(name, func(t *testing.T) { conflict(t, c.level, c.add) })
	}
}

func conflict(t *testing.T, level pgx.TxIsoLevel, add string) {
	const crowd = 24
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.MaxConns = crowd })
	must(t, f.admin, `CREATE TABLE `+f.schema+`.account (id int PRIMARY KEY, n int NOT NULL)`)
	must(t, f.admin, `INSERT INTO `+f.schema+`.account VALUES (0, 0), (1, 0)`)
	add = strings.ReplaceAll(add, "account", f.schema+".account")
	s := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Isolation: level})
	op := &once.Operation[struct{}]{Name: "transfer"}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // on a loaded machine
	defer cancel()
	var runs atomic.Int64
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := once.DoTx(ctx, s, op.For(fmt.Sprint(i)), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
				runs.Add(1)
				if _, err := tx.Exec(ctx, add, i%2); err != nil {
					return struct{}{}, err
				}
				if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.05)`); err != nil { // so that another transaction locks the other row
					return struct{}{}, err
				}
				_, err := tx.Exec(ctx, add, 1-i%2)
				return struct{}{}, err
			})
			if err != nil {
				t.Errorf("transfer %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if runs.Load() <= crowd {
		t.Error("no transaction was run again: there was no conflict")
	}
	var n, done int
	err := f.admin.QueryRow(t.Context(), `SELECT (SELECT max(n) FROM `+f.schema+`.account), (SELECT count(*) FROM `+f.records()+` WHERE status = 4)`).Scan(&n, &done)
	if err != nil || n < crowd || done != crowd {
		t.Errorf("an account has %d, and %d keys are done, %v: want %d", n, done, err, crowd)
	}
}
