// Package consuming has what SQL databases keep for consumers, once for all stores on them: who consumes what, how far
// each has come in a log, and the messages that are put aside. A store adds its connections and the words for errors.
//
// The rules of the rows, besides those of package sqlschema:
//
//   - A row is found by the digest of its names. lane is that of a consumer and an ordering key, null where there is
//     none.
//   - A position has a negative epoch while a transaction moves it that could end without a word: see [Tables.Mark].
//   - due is null unless a shelved message waits, ended unless it is handled or discarded. seq is the order of inserts.
//   - header is JSON: names and values under "text", or under "base64" what is not valid UTF-8.
package consuming

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/sqlschema"
)

// Querier is a pool, a connection or a transaction of any client.
type Querier interface {
	// Exec runs a statement and returns how many rows it has changed.
	Exec(ctx context.Context, statement string, args ...any) (int64, error)
	Query(ctx context.Context, statement string, args ...any) (Rows, error)
}

// Rows are the rows of a query, as clients have them in common.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

// Lost is an error that means that somebody else has moved on.
type Lost string

func (l Lost) Error() string { return string(l) }

// Tables are the tables of consumers of one store. Its errors are those of the
// client, a [Lost], or a [sqlschema.Refusal] of arguments.
type Tables struct {
	names sqlschema.Names
	sql   statements
}

// New makes the statements, once for a store.
func New(n sqlschema.Names) *Tables {
	return &Tables{names: n, sql: newStatements(n)}
}

// uuid is the digest of names of one kind, as clients take it.
func (t *Tables) uuid(parts ...string) any { return t.names.UUID(name.Digest(parts...)) }

func (t *Tables) exec(ctx context.Context, q Querier, st sqlschema.Statement, p sqlschema.Params) (int64, error) {
	return q.Exec(ctx, st.Text, st.Args(p)...)
}

// each calls scan for each row.
func (t *Tables) each(ctx context.Context, q Querier, st sqlschema.Statement, p sqlschema.Params,
	scan func(Rows) error) error {

	rows, err := q.Query(ctx, st.Text, st.Args(p)...)
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

// checkNames takes what each name is, and the name. The first may not be empty.
func checkNames(whatAndName ...string) error {
	if whatAndName[1] == "" {
		return sqlschema.Refusal(fmt.Sprintf("the %s is empty", whatAndName[0]))
	}
	for i := 0; i < len(whatAndName); i += 2 {
		if err := name.Check(whatAndName[i], whatAndName[i+1]); err != nil {
			return sqlschema.Refusal(err.Error())
		}
	}
	return nil
}

// Clean is a text as every database takes it. It is often an error's, of which nobody knows what is in it.
func Clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
