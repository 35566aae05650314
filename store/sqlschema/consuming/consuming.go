// Package consuming implements what SQL stores keep for consumers: who consumes
// what, the positions of consumers in logs, and the messages that they put
// aside. A store adds its [sqlschema.Access].
//
// The rows follow these rules, besides those of package sqlschema:
//
//   - A row is found by the digest of its names. lane is the digest of a
//     consumer and an ordering key. It is null if there is no ordering key.
//   - The epoch of a position is negative while a transaction moves it that the
//     database might end silently: see [Tables.Mark].
//   - due is null unless a shelved message is waiting, ended unless it is
//     handled or discarded. seq is the order of inserts.
//   - header is JSON: names and values are under "text", or under "base64" if
//     they are not valid UTF-8.
package consuming

import (
	"context"
	"fmt"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/sqlschema"
)

// Tables has the statements on the tables of consumers. Its methods return
// errors of the client, a [sqlschema.Lost], or a [sqlschema.Refusal].
type Tables struct {
	names sqlschema.Names
	sql   statements
}

// NewTables compiles the statements. A store does that once.
func NewTables(n sqlschema.Names) *Tables {
	return &Tables{names: n, sql: newStatements(n)}
}

// uuid is the digest of names of one kind, as clients accept it.
func (t *Tables) uuid(parts ...string) any { return t.names.UUID(name.Digest(parts...)) }

func (t *Tables) exec(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params) (int64, error) {
	return q.Exec(ctx, st.Text, st.Args(p)...)
}

func (t *Tables) each(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params,
	scan func(sqlschema.Rows) error) error {

	return sqlschema.Each(ctx, q, st.Text, st.Args(p), scan)
}

// checkNames checks pairs of what a name is and the name. The first name must
// not be empty.
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
