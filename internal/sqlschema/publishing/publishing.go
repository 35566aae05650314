// Package publishing has what SQL databases keep of messages on their way out, once for all stores on them: the outbox,
// and which relay has which of its lanes. A store adds its connections and the words for errors.
//
// The rules of the rows, besides those of package sqlschema; docs/outbox-row.md has those that others write by:
//
//   - A row is found by its lane, state and seq, which are its key in PostgreSQL. Elsewhere seq is unique by itself.
//   - due is when a delayed row is due, and when a published one was published; null in other states. changed is null
//     as long as the state is the one that the row was inserted with.
//   - The 16 rows of lanes are always there. A lane is leased by changing its row, and whoever does that has changed
//     the first row before, so that there is one at a time.
//   - The row of a relay is there from one sign of life to the end of what it is good for, or a little longer.
package publishing

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
)

// Querier is a pool, a connection or a transaction of any client.
type Querier = consuming.Querier

// Rows are the rows of a query.
type Rows = consuming.Rows

// Call is a statement with its arguments.
type Call struct {
	Text string
	Args []any

	uncounted bool // the rows that it changes were counted by a call before
}

const lanes = store.Lanes

// Tables are the tables of the outbox of one store. Its errors are those of the
// client, or a [sqlschema.Refusal] of arguments.
type Tables struct {
	names sqlschema.Names
	sql   *statements

	newPlace func() Place // nil: places are not read
	lastPage atomic.Int64 // how many messages it had
	heavy    atomic.Bool  // the last page that was bounded had a large body
}

// New makes the statements, once for a store.
func New(n sqlschema.Names) *Tables { return &Tables{names: n, sql: newStatements(n)} }

func call(st sqlschema.Statement, p sqlschema.Params) Call {
	return Call{Text: st.Text, Args: st.Args(p)}
}

// run returns how many rows the calls have changed.
func run(ctx context.Context, q Querier, calls []Call) (changed int, err error) {
	for _, c := range calls {
		n, err := q.Exec(ctx, c.Text, c.Args...)
		if err != nil {
			return 0, err
		}
		if !c.uncounted {
			changed += int(n)
		}
	}
	return changed, nil
}

func exec(ctx context.Context, q Querier, st sqlschema.Statement, p sqlschema.Params) (int, error) {
	return run(ctx, q, []Call{call(st, p)})
}

// each calls scan for each row.
func each(ctx context.Context, q Querier, c Call, scan func(Rows) error) error {
	rows, err := q.Query(ctx, c.Text, c.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func checkLanes(of []int) error {
	for _, lane := range of {
		if lane < 0 || lane >= lanes {
			return sqlschema.Refusal(fmt.Sprintf("there is no lane %d: they are 0 to %d", lane, lanes-1))
		}
	}
	return nil
}

func checkState(s store.OutgoingState) error {
	if s < store.Pending || s > store.Published {
		return sqlschema.Refusal(fmt.Sprintf("a message in the outbox has no state %d", s))
	}
	return nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
