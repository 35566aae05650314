// Package publishing has what SQL databases keep of messages on their way out, once for all stores on them: the outbox,
// and which relay has which of its lanes. A store adds its connections and the words for errors.
//
// Its types are those of package store, which no internal package may know: field by field the same, so that one
// converts to the other.
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

type message interface {
	~struct {
		ID          string
		Topic       string
		OrderingKey string
		Body        []byte
		Header      map[string]string
		Time        time.Time
		Attempt     int
	}
}

// Outgoing is store.Outgoing.
type Outgoing[M message, S ~int] struct {
	Message  M
	Delay    time.Duration
	Lane     int
	Seq      int64
	State    S
	Attempts int
	Reason   string
	Created  time.Time
	Changed  time.Time
	Cause    string
	LogPlace uint64
	LogMore  bool
	Hint     uint64
	Unopened error // of package store
}

type outgoing[M message, S ~int] interface {
	~struct {
		Message  M
		Delay    time.Duration
		Lane     int
		Seq      int64
		State    S
		Attempts int
		Reason   string
		Created  time.Time
		Changed  time.Time
		Cause    string
		LogPlace uint64
		LogMore  bool
		Hint     uint64
		Unopened error
	}
}

// The states of package store.
const (
	pending = iota
	delayed
	held
	stuck
	published
)

// The endings of package store.
const (
	endDelete = iota
	endKeep
	endArchive
)

const lanes = sqlschema.OutboxLanes

// Tables are the tables of the outbox of one store. O is its type of messages on their way, which is that of the slices
// that it takes and returns, Message the one within, State that of their states. Its errors are those of the client, or
// a [sqlschema.Refusal] of arguments.
type Tables[O outgoing[Message, State], Message message, State ~int] struct {
	names sqlschema.Names
	check func(*Message) error
	lane  func(*Message) int
	sql   *statements

	newPlace func() Place // nil: places are not read
	lastPage atomic.Int64 // how many messages it had
	heavy    atomic.Bool  // the last page that was bounded had a large body
}

// New makes the statements, once for a store. Check says what is wrong with a message, and lane which one is its.
func New[O outgoing[M, S], M message, S ~int](n sqlschema.Names, check func(*M) error,
	lane func(*M) int) *Tables[O, M, S] {

	return &Tables[O, M, S]{names: n, check: check, lane: lane, sql: newStatements(n)}
}

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

func checkState[S ~int](s S) error {
	if s < pending || s > published {
		return sqlschema.Refusal(fmt.Sprintf("a message in the outbox has no state %d", s))
	}
	return nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
