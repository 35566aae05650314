package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/chance"
)

const scratch = "bench" // name of the table after the prefix

// marks are the columns that identify a scratch table.
var marks = []string{"body", "once_bench_row"}

// State is the state of the scratch table.
type State int

const (
	None    State = iota
	Left          // of a run that was killed or is still running
	Foreign       // the table is not a scratch table
)

// Scratch returns the name of the scratch table in SQL.
func Scratch(t *target.Target) string { return t.Tables.Names.Named(scratch) }

// Find looks for a scratch table.
func Find(ctx context.Context, t *target.Target) (State, error) {
	columns, err := t.Tables.Columns(ctx, scratch)
	slices.Sort(columns)
	switch {
	case err != nil || len(columns) == 0:
		return None, err
	case slices.Equal(columns, marks):
		return Left, nil
	}
	return Foreign, nil
}

// create creates the table and replaces one that was left over.
func create(ctx context.Context, t *target.Target) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := drop(ctx, t); err != nil {
		return err
	}
	ctx, cancel := lasting(ctx, patience) // to know whether it was created
	defer cancel()
	columns := map[target.Engine]string{
		target.PostgreSQL: "once_bench_row bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)",
		target.MySQL:      "once_bench_row bigint AUTO_INCREMENT PRIMARY KEY, body varchar(200) NOT NULL) ENGINE=InnoDB",
		target.SQLite:     "once_bench_row integer PRIMARY KEY, body text NOT NULL)",
	}[t.Engine]
	_, err := t.Tables.DB.ExecContext(ctx, "CREATE TABLE "+Scratch(t)+" ("+columns)
	return err
}

func insertRow(t *target.Target) target.Statement {
	return target.Statement{SQL: "INSERT INTO " + Scratch(t) + " (body) VALUES ('a row as small as an order, a payment or an entry in a ledger')"}
}

// insertKey inserts a key at random, as a guard that is written by hand does.
// Keys are less than 0, and the rows of insertRow are numbered from 1.
func insertKey(t *target.Target) target.Statement {
	key := -1 - chance.N[int64](math.MaxInt64)
	switch t.Engine {
	case target.PostgreSQL:
		return target.Statement{SQL: "INSERT INTO " + Scratch(t) + " (once_bench_row, body) OVERRIDING SYSTEM VALUE VALUES ($1, $2) ON CONFLICT DO NOTHING",
			Args: []any{key, "a key"}}
	case target.MySQL:
		return target.Statement{SQL: fmt.Sprintf("INSERT IGNORE INTO %s (once_bench_row, body) VALUES (%d, 'a key')", Scratch(t), key)}
	}
	return target.Statement{SQL: fmt.Sprintf("INSERT INTO %s (once_bench_row, body) VALUES (%d, 'a key') ON CONFLICT DO NOTHING", Scratch(t), key)}
}

// isolation returns the isolation level at which transactions run unless they
// say otherwise, in PostgreSQL.
func isolation(ctx context.Context, t *target.Target) (level string, err error) {
	if t.Engine != target.PostgreSQL {
		return "", nil
	}
	err = t.Tables.DB.QueryRowContext(ctx, "SHOW default_transaction_isolation").Scan(&level)
	return level, err
}

// drop drops the table if it is a scratch table.
func drop(ctx context.Context, t *target.Target) error {
	ctx, cancel := lasting(ctx, patience)
	defer cancel()
	state, err := Find(ctx, t)
	if err == nil && state == Left {
		_, err = t.Tables.DB.ExecContext(ctx, "DROP TABLE "+Scratch(t))
	}
	return err
}

// Keys are the remaining keys.
type Keys struct {
	Left int
	Due  time.Time // when the last key expires; zero: none is left
	Err  error     // why they could not be forgotten or counted
}

const batch = 1000

// forget forgets expired keys, about as many as were made at most, and counts
// the remaining ones.
func (b *bench) forget(ctx context.Context) (k Keys) {
	limited, cancel := lasting(ctx, patience)
	defer cancel()
	k.Err = b.free(limited)
	for n, all := batch, 0; k.Err == nil && n == batch && all < int(b.keys.Load()); all += n {
		n, k.Err = b.target.Store.Forget(limited, batch)
	}
	ctx, cancel = lasting(ctx, patience)
	defer cancel()
	if b.target.Tables == nil || b.target.Tables.Partitioned { // the engine drops them later
		if k.Left = int(b.keys.Load()); k.Left > 0 {
			k.Due = time.Now().Add(keep)
		}
		return k
	}
	var due sql.NullInt64
	err := b.target.Tables.DB.QueryRowContext(ctx, fmt.Sprintf( // uses the index on due, because the table may be large
		"SELECT count(*), max(due) FROM %s WHERE operation = '%s' AND due IS NOT NULL AND due <= %s + %d",
		b.target.Tables.Names.Table(), Operation, b.target.Tables.Names.Now(), keep.Microseconds())).Scan(&k.Left, &due)
	if k.Err = errors.Join(k.Err, err); due.Valid {
		k.Due = time.UnixMicro(due.Int64)
	}
	return k
}

// free releases keys of an earlier run that was killed. They guard no work and
// would otherwise stay for ever.
func (b *bench) free(ctx context.Context) error {
	q := once.RecordQuery{Operation: Operation, Status: []once.Status{once.Unknown}, Limit: batch}
	for {
		recs, next, err := b.target.List(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range recs {
			err := b.target.Store.Settle(ctx, once.Settlement{Status: once.Absent, KeepOutcome: keep, KeepKey: keep,
				Fence: once.Fence{Key: r.Key, Owner: r.Owner, Attempt: r.Attempt}, Reason: "once bench was killed"})
			if err != nil && !errors.Is(err, once.ErrLeaseLost) {
				return err
			}
		}
		if next == (once.Key{}) {
			return nil
		}
		q.After = next
	}
}
