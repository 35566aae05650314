package sqlstore

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// mark moves a position and marks its row. It reports false if the row had been
// moved before. Only this transaction sees the mark. So if the database
// silently ends the transaction and begins another, unmark finds no mark, and
// nothing is committed.
func (s *Store) mark(ctx context.Context, tx *sql.Tx, from, to store.Position) (moved bool, err error) {
	limited, cancel := context.WithTimeout(ctx, sqltx.EndTime)
	defer cancel()
	q := querier{tx, s.prepared}
	moved, err = s.consumers.Mark(limited, q, from, to)
	if err == nil && !moved {
		err = s.consumers.Stands(limited, q, from, to)
	}
	if err != nil {
		return false, s.waited(ctx, limited, err)
	}
	return moved, nil
}

func (s *Store) unmark(ctx context.Context, tx *sql.Tx, to store.Position) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	return s.explain(s.consumers.Unmark(ctx, querier{tx, s.prepared}, to))
}
