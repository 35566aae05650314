package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// Transactions that change two rows in opposite orders deadlock again and
// again. All of them succeed in the end.
func TestCrosswiseTransactionsAllSucceed(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect == sqlstore.SQLite {
			return // one writer at a time
		}
		const crowd = 24
		s, db := e.migrated(t)
		mustExec(t, db, `CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL)`)
		mustExec(t, db, `INSERT INTO account VALUES (0, 0), (1, 0)`)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // for a busy machine
		defer cancel()
		op, runs := &once.Operation[struct{}]{Name: "transfer"}, atomic.Int64{}
		pause := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: `SELECT pg_sleep(0.05)`, sqlstore.MySQL: `DO SLEEP(0.05)`}[e.dialect]
		var wg sync.WaitGroup
		for i := range crowd {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := once.DoTx(ctx, s, op.For(fmt.Sprint(i)), func(ctx context.Context, tx *sql.Tx) (none struct{}, err error) {
					runs.Add(1)
					for _, statement := range []string{
						fmt.Sprintf(`UPDATE account SET n = n + 1 WHERE id = %d`, i%2), pause,
						fmt.Sprintf(`UPDATE account SET n = n + 1 WHERE id = %d`, 1-i%2),
					} {
						if _, err := tx.ExecContext(ctx, statement); err != nil {
							return none, err
						}
					}
					return none, nil
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
		if n := number(t, db, `SELECT sum(n) FROM account`); n != 2*crowd {
			t.Errorf("the accounts have %d, want %d", n, 2*crowd)
		}
	})
}
