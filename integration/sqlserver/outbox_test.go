package sqlserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/publishing"
)

// outboxStatements returns all statements for the outbox, each with the method
// that sends it.
func outboxStatements(t *testing.T, n sqlschema.Names) map[string]string {
	t.Helper()
	a := &asked{statements: make(map[string]string)}
	tables := publishing.NewTables(n)
	ctx, relay := t.Context(), [16]byte{1}
	m := store.Outgoing{Message: broker.Message{ID: "1", Topic: "t", OrderingKey: "k"}, Lane: 3, Seq: 7}
	later := m
	later.Delay = time.Hour
	two := []store.Outgoing{m, m}
	calls := []struct {
		by string
		do func() error
	}{
		{"Put", func() error { return tables.Put(ctx, a, two) }},
		{"Put", func() error { return tables.Put(ctx, a, []store.Outgoing{m, later}) }},
		{"Lease", func() error { _, _ = tables.Lease(ctx, a, relay, time.Hour, []int{1, 2}); return nil }}, // finds no row
		{"Release", func() error { return tables.Release(ctx, a, relay, nil) }},
		{"Forget", func() error { _, err := tables.Forget(ctx, a, time.Hour, 7); return err }},
		{"Depth", func() error { _, err := tables.Depth(ctx, a, 7); return err }},
	}
	for _, q := range []store.OutgoingQuery{{}, {Lanes: []int{2, 1}, MaxBytes: 7}, {State: store.Delayed, Bodiless: true, After: 3},
		{Lanes: []int{2, 1}, OrderingKey: "k", Topic: "t", IDs: []string{"1", "2"}, Heads: true, MaxBytes: 7}} {
		calls = append(calls, struct {
			by string
			do func() error
		}{"Outgoing", func() error {
			_, err := tables.Outgoing(ctx, a, q)
			return err
		}})
	}
	for _, who := range [][16]byte{{}, relay} {
		calls = append(calls, []struct {
			by string
			do func() error
		}{
			{"Delete", func() error { _, err := tables.Sent(ctx, a, who, two, store.Delete); return err }},
			{"Keep", func() error { _, err := tables.Sent(ctx, a, who, two, store.Keep); return err }},
			{"Archive", func() error { _, err := tables.Sent(ctx, a, who, two, store.Archive); return err }},
			{"Move", func() error { _, err := tables.Move(ctx, a, who, two, store.Delayed); return err }},
			{"Remove", func() error { _, err := tables.Remove(ctx, a, who, two); return err }},
			{"Wake", func() error { _, _, err := tables.Wake(ctx, a, who, store.Pending, 7); return err }},
		}...)
	}
	for _, call := range calls {
		a.by = call.by
		if err := call.do(); err != nil {
			t.Errorf("%s: %v", call.by, err)
		}
	}
	return a.statements
}

// outboxKinds are the allowed kinds of the statements of a method.
var outboxKinds = map[string][][]string{
	"Put": {{"Insert"}}, "Lease": {{"Update"}, {"Update", "If"}, {"Delete"}, {"Select"}}, "Release": {{"Update"}, {"Delete"}},
	"Forget": {{"PredicateSet", "Delete"}}, "Depth": {{"Select"}}, "Outgoing": {{"Select"}},
	"Delete": {{"PredicateSet", "Delete"}}, "Remove": {{"PredicateSet", "Delete"}}, "Archive": {{"PredicateSet", "Delete"}},
	"Keep": {{"PredicateSet", "Update"}}, "Move": {{"PredicateSet", "Update"}},
	"Wake": {{"PredicateSet", "Update"}, {"Select"}},
}

func checkOutbox(text, by string) (err error) {
	for _, kinds := range outboxKinds[by] {
		if err = check(text, kinds...); err == nil || !strings.Contains(err.Error(), "it is read as") {
			return err
		}
	}
	return err
}

func TestOutboxStatementsAreTransactSQL(t *testing.T) {
	for _, v := range variants {
		all := outboxStatements(t, names(t, sqlschema.SQLServer, v.schema, v.prefix))
		if len(all) < 20 {
			t.Errorf("%d statements were sent: the test does not call what it says", len(all))
		}
		for text, by := range all {
			if err := checkOutbox(text, by); err != nil {
				t.Errorf("%s with the schema %q and the prefix %q: %v\n%s", by, v.schema, v.prefix, err, text)
			}
		}
	}
}

func TestCheckerNoticesOtherDialectsOfTheOutbox(t *testing.T) {
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite} {
		var passed []string
		for text, by := range outboxStatements(t, names(t, d, "", "")) {
			if checkOutbox(text, by) == nil && strings.ContainsAny(text, "?$") {
				passed = append(passed, text)
			}
		}
		slices.Sort(passed)
		if len(passed) > 0 {
			t.Errorf("of dialect %v, these pass for Transact-SQL: %q", d, passed)
		}
	}
}
