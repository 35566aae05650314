// Package publishing implements the outbox of SQL stores: the messages to
// publish, and which relay has which lanes. A store adds its
// [sqlschema.Access].
//
// The rows follow these rules, besides those of package sqlschema.
// docs/outbox-row.md has the rules for other programs that write them.
//
//   - A row is found by its lane, state and seq, which are its key in
//     PostgreSQL. Elsewhere seq alone is unique.
//   - due is when a delayed message is due, when a published one was published,
//     or when a person made one held or stuck. It is null otherwise. changed is
//     null until the state changes.
//   - The 16 rows of lanes always exist. A relay leases a lane by changing its
//     row, after it has changed the first row, so one relay does so at a time.
//   - The row of a relay exists from its first sign of life until that has
//     lapsed, or a little longer.
package publishing

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// Call is a statement with its arguments.
type Call struct {
	Text string
	Args []any

	uncounted bool // an earlier call has counted the rows that it changes
}

const lanes = store.Lanes

// Tables has the statements on the tables of an outbox. Its methods return
// errors of the client, or a [sqlschema.Refusal].
type Tables struct {
	names sqlschema.Names
	sql   *statements

	newPlace   func() Place               // nil if places are not read
	lastPage   atomic.Int64               // the number of messages in the last page
	heavy      atomic.Bool                // the last bounded page had a large body
	strays     atomic.Pointer[time.Time]  // when strays were looked for; nil: never
	strayPlace atomic.Pointer[strayPlace] // where the next look goes on; nil: at the beginning
}

// NewTables compiles the statements. A store does that once.
func NewTables(n sqlschema.Names) *Tables { return &Tables{names: n, sql: newStatements(n)} }

func call(st sqlschema.Statement, p sqlschema.Params) Call {
	return Call{Text: st.Text, Args: st.Args(p)}
}

// run returns the number of rows that the calls changed.
func run(ctx context.Context, q sqlschema.Querier, calls []Call) (changed int, err error) {
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

func exec(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params) (int, error) {
	return run(ctx, q, []Call{call(st, p)})
}

func each(ctx context.Context, q sqlschema.Querier, c Call, scan func(sqlschema.Rows) error) error {
	return sqlschema.Each(ctx, q, c.Text, c.Args, scan)
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
		return sqlschema.Refusal(fmt.Sprintf("%d is no state of a message in the outbox", s))
	}
	return nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
