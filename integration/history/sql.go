package history

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
)

// effectTable is the table for the effects of work. It accepts duplicates.
const effectTable = "CREATE TABLE effect (name varchar(100) NOT NULL, value bigint NOT NULL)"

// sqlPlace is a database. Its processes have a pool of connections each, and come
// back in the next round.
func sqlPlace(t testing.TB, e engine.Engine) *place {
	first, dsn := e.Migrated(t)
	first.MustExec(t, effectTable)
	pools := []*engine.Database{first, e.Connect(t, dsn), e.Connect(t, dsn)}
	var next atomic.Int64
	return &place{inSteps: e.Name == engine.SQLite, compares: true, brief: shortLease, longest: shortPause, beside: 1, units: 5, open: func(bool) (*process, error) {
		d := pools[int(next.Add(1))%len(pools)]
		return newProcess(once.TxStore[engine.Tx](d.Store), &dialect[engine.Tx]{
			begin: d.Begin,
			write: func(ctx context.Context, of engine.Tx, k once.Key, value int64) error {
				return insert(ctx, of.Exec, k, value)
			},
			commit:   func(ctx context.Context, of engine.Tx) error { return of.Commit(ctx) },
			rollback: func(ctx context.Context, of engine.Tx) error { return of.Rollback(ctx) },
		}, sqlEffects{d}), nil
	}}
}

func insert(ctx context.Context, exec func(context.Context, string) error, k once.Key, value int64) error {
	return exec(ctx, fmt.Sprintf("INSERT INTO effect (name, value) VALUES ('%s', %d)", nameOf(k), value))
}

// sqlEffects are the rows of effectTable.
type sqlEffects struct{ *engine.Database }

func (e sqlEffects) write(ctx context.Context, k once.Key, value int64) error {
	return insert(ctx, e.Exec, k, value)
}

func (e sqlEffects) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	where := " FROM effect WHERE name = '" + nameOf(k) + "'"
	if n, err = e.Number(ctx, "SELECT count(*)"+where); err == nil {
		value, err = e.Number(ctx, "SELECT COALESCE(MAX(value), 0)"+where)
	}
	return n, value, err
}
