package sqlserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/consuming"
	"github.com/effectively-once/once/store/sqlschema/sqltest"
)

// asked is a database without rows that records statements and the methods that
// sent them.
type asked struct {
	by         string
	statements map[string]string
	changes    int64 // the rows that a statement changes
}

func (a *asked) Exec(_ context.Context, statement string, _ ...any) (int64, error) {
	a.statements[statement] = a.by
	return a.changes, nil
}

func (a *asked) Query(ctx context.Context, query string, _ ...any) (sqlschema.Rows, error) {
	a.statements[query] = a.by
	return new(sqltest.Recorder).Query(ctx, query)
}

// consumerStatements returns all statements for consumers, each with the method
// that sends it.
func consumerStatements(t *testing.T, n sqlschema.Names) map[string]string {
	t.Helper()
	a := &asked{statements: make(map[string]string), changes: 1}
	tables := consuming.NewTables(n)
	ctx, from := t.Context(), store.Position{Consumer: "c", Partition: "0", Epoch: 1}
	to := from
	to.Offset = 1
	m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "1", Topic: "t", OrderingKey: "k"}}
	gone := m
	gone.State = store.Handled
	q := store.ShelfQuery{OrderingKey: "k", Topic: "t", IDs: []string{"1", "2"}, Ready: true,
		States: []store.ShelfState{store.Waiting, store.Parked}}
	more := q
	more.Consumer, more.BehindParked, more.Bodiless = "c", true, true
	for _, call := range []struct {
		by string
		do func() error
	}{
		{"Register", func() error { _, err := tables.Register(ctx, a, store.Consumer{Name: "c"}); return err }},
		{"Consumers", func() error { _, err := tables.Consumers(ctx, a); return err }},
		{"Open", func() error { _, _ = tables.Open(ctx, a, "c", "0"); return nil }}, // finds no row
		{"Set", func() error { return tables.Set(ctx, a, to) }},
		{"Positions", func() error { _, err := tables.Positions(ctx, a, "c"); return err }},
		{"Mark", func() error { _, err := tables.Mark(ctx, a, from, to); return err }},
		{"Unmark", func() error { return tables.Unmark(ctx, a, to) }},
		{"Shelve", func() error { return tables.Shelve(ctx, a, []store.Shelved{m}) }},
		{"Blocked", func() error { _, err := tables.Blocked(ctx, a, "c", []string{"k", "l"}, true); return err }},
		{"Change", func() error { return tables.Change(ctx, a, m) }},
		{"Remove", func() error { return tables.Change(ctx, a, gone) }},
		{"Forget", func() error { _, err := tables.Forget(ctx, a, time.Hour, 7); return err }},
		{"Shelved", func() error { _, err := tables.Shelved(ctx, a, q); return err }},
		{"Shelved", func() error { _, err := tables.Shelved(ctx, a, more); return err }},
	} {
		a.by = call.by
		if err := call.do(); err != nil {
			t.Errorf("%s: %v", call.by, err)
		}
	}
	a.by, a.changes = "Repair", 0
	_ = tables.Set(ctx, a, to) // as if the epoch was damaged
	return a.statements
}

// consumerKinds are the allowed kinds of a statement by its first words.
var consumerKinds = map[string][]string{
	"SET NOCOUNT ON;":  {"PredicateSet", "PredicateSet", "TryCatch"},
	"SET NOCOUNT OFF;": {"PredicateSet", "Update"},
	"SELECT":           {"Select"},
	"UPDATE":           {"Update"},
}

func TestConsumerStatementsAreTransactSQL(t *testing.T) {
	for _, v := range variants {
		all := consumerStatements(t, names(t, sqlschema.SQLServer, v.schema, v.prefix))
		if len(all) < 18 {
			t.Errorf("%d statements were sent: the test does not call what it says", len(all))
		}
		for text, by := range all {
			if err := check(text, kindsOfConsumers(text, by)...); err != nil {
				t.Errorf("%s with the schema %q and the prefix %q: %v\n%s", by, v.schema, v.prefix, err, text)
			}
		}
	}
}

func kindsOfConsumers(text, by string) []string {
	if by == "Forget" || by == "Remove" {
		return []string{"PredicateSet", "Delete"}
	}
	for first, kinds := range consumerKinds {
		if strings.HasPrefix(strings.TrimSpace(text), first) {
			return kinds
		}
	}
	return nil
}

func TestCheckerNoticesOtherDialectsOfConsumers(t *testing.T) {
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite} {
		for text, by := range consumerStatements(t, names(t, d, "", "")) {
			if check(text, kindsOfConsumers(text, by)...) == nil && strings.ContainsAny(text, "?$") {
				t.Errorf("%s of dialect %v passes for Transact-SQL:\n%s", by, d, text)
			}
		}
	}
}
