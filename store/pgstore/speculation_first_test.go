package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// work is what a handler needs to write a row.
type work struct {
	context.Context
	pgx.Tx
	insert, row string // $1 is the row
}

func (w work) exec(sql string, args ...any) error {
	_, err := w.Tx.Exec(w, sql, args...)
	return err
}

func (w work) write() error { return w.exec(w.insert, w.row) }

func want(err error, got, want string) error {
	if err == nil && got != want {
		err = fmt.Errorf("got %q, want %q", got, want)
	}
	return err
}

// firsts are the ways to begin the work. Each writes one row.
var firsts = []struct {
	name string
	raw  bool // on the connection itself, where a loser gets PostgreSQL's error in a failed transaction
	run  func(work) error
}{
	{"Exec", false, func(w work) error {
		tag, err := w.Exec(w, w.insert, w.row)
		return want(err, tag.String(), "INSERT 0 1")
	}},
	{"Exec without arguments", false, func(w work) error { return w.exec(strings.ReplaceAll(w.insert, "$1", "'"+w.row+"'")) }},
	{"Query, as CollectRows reads it", false, func(w work) error {
		rows, _ := w.Query(w, w.insert+` RETURNING name`, w.row)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		return want(err, fmt.Sprint(names, rows.CommandTag()), "["+w.row+"] INSERT 0 1")
	}},
	{"Query, as generated code reads it", false, func(w work) error {
		rows, err := w.Query(w, "-- name: Add :many\n"+w.insert+" RETURNING name", w.row)
		if err != nil {
			return err
		}
		defer rows.Close()
		var got string
		for rows.Next() {
			if err := rows.Scan(&got); err != nil {
				return err
			}
		}
		return want(rows.Err(), got, w.row)
	}},
	{"Query, read in part", false, func(w work) error {
		rows, err := w.Query(w, `WITH one AS (`+w.insert+`) SELECT generate_series(1, 5000)`, w.row)
		rows.Next()
		rows.Close()
		return errors.Join(err, rows.Err())
	}},
	{"QueryRow", false, func(w work) error {
		var got string
		err := w.QueryRow(w, w.insert+` RETURNING name`, w.row).Scan(&got)
		return want(err, got, w.row)
	}},
	{"QueryRow without a row", false, func(w work) error {
		if err := w.QueryRow(w, `SELECT 1 WHERE false`).Scan(nil); !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("not no rows: %w", err)
		}
		return w.write()
	}},
	{"named arguments", false, func(w work) error {
		return w.exec(strings.ReplaceAll(w.insert, "$1", "@row"), pgx.NamedArgs{"row": w.row})
	}},
	{"an exec mode", false, func(w work) error { return w.exec(w.insert, pgx.QueryExecModeSimpleProtocol, w.row) }},
	{"result formats", false, func(w work) error {
		rows, err := w.Query(w, `WITH one AS (`+w.insert+`) SELECT 7`, pgx.QueryResultFormats{pgx.TextFormatCode}, w.row)
		if err != nil {
			return err
		}
		defer rows.Close()
		rows.Next()
		return want(rows.Err(), string(rows.RawValues()[0]), "7")
	}},
	{"Begin, released", false, func(w work) error {
		return pgx.BeginFunc(w, w.Tx, func(tx pgx.Tx) error { return work{w, tx, w.insert, w.row}.write() })
	}},
	{"Begin, rolled back", false, func(w work) error {
		nested, err := w.Begin(w)
		if err != nil {
			return err
		}
		return errors.Join(work{w, nested, w.insert, "undone"}.write(), nested.Rollback(w), w.write())
	}},
	{"a savepoint as text", false, func(w work) error {
		if err := w.exec(`SAVEPOINT a`); err != nil {
			return err
		}
		return errors.Join(w.exec(w.insert, "undone"), w.exec(`ROLLBACK TO SAVEPOINT a`), w.write())
	}},
	{"SendBatch", false, func(w work) error {
		b := new(pgx.Batch)
		b.Queue(w.insert, w.row)
		b.Queue(`SELECT 1`)
		return w.SendBatch(w, b).Close()
	}},
	{"CopyFrom", false, func(w work) error {
		table := strings.Split(strings.Fields(w.insert)[2], ".")
		_, err := w.CopyFrom(w, table, []string{"name"}, pgx.CopyFromRows([][]any{{w.row}}))
		return err
	}},
	{"Prepare", false, func(w work) error {
		if _, err := w.Prepare(w, "add", w.insert); err != nil {
			return err
		}
		return w.exec("add", w.row)
	}},
	{"SET LOCAL", false, func(w work) error { return errors.Join(w.exec(`SET LOCAL lock_timeout = '7s'`), w.write()) }},
	{"DO", false, func(w work) error { return errors.Join(w.exec(`DO 'BEGIN END'`), w.write()) }},
	{"two statements in one text", false, func(w work) error {
		return w.exec(strings.ReplaceAll(w.insert, "$1", "'"+w.row+"'") + `; SELECT 1`)
	}},
	{"LargeObjects", true, func(w work) error {
		objects := w.LargeObjects()
		oid, err := objects.Create(w, 0)
		return errors.Join(err, objects.Unlink(w, oid), w.write())
	}},
	{"Conn", true, func(w work) error {
		_, err := w.Conn().Exec(w, w.insert, w.row)
		return err
	}},
}

// Whatever statement the work begins with, it is committed if the claim is won,
// and not otherwise.
func TestSpeculativeWorkMayBeginWithAnything(t *testing.T) {
	for _, m := range modes {
		for shape, do := range shapes(once.Policy{}) {
			t.Run(m.String()+", "+shape, func(t *testing.T) {
				f := newFixture(t, mode(m), onlyOne)
				for _, c := range firsts {
					runs := 0
					err := do(t.Context(), f.Store, c.name, func(ctx context.Context, tx pgx.Tx) error {
						runs++
						return c.run(work{ctx, tx, "INSERT INTO " + f.effects() + " VALUES ($1)", c.name})
					})
					if err != nil || runs != 1 {
						t.Errorf("%s: %v after %d runs", c.name, err, runs)
					}
					err = do(t.Context(), f.unused(t), c.name, func(ctx context.Context, tx pgx.Tx) error {
						runs++
						err := c.run(work{ctx, tx, "INSERT INTO " + f.effects() + " VALUES ($1)", c.name})
						if err == nil {
							t.Errorf("%s: a statement of a duplicate succeeded", c.name)
						}
						if !c.raw {
							wantPrivate(t, err)
						}
						wantPrivate(t, f.write(ctx, tx, c.name))
						_, err = tx.Begin(ctx)
						wantPrivate(t, err)
						return nil
					})
					if err != nil || runs != 2 {
						t.Errorf("%s, a duplicate: %v after %d runs", c.name, err, runs-1)
					}
					f.want(t, c.name, 1)
				}
				f.want(t, "undone", 0)
				f.quiet(t)
			})
		}
	}
}
