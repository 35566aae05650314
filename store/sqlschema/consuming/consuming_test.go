package consuming

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltest"
)

// unchanged is a database in which no statement changes a row.
type unchanged struct{ *sqltest.Recorder }

func (u unchanged) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	_, err := u.Recorder.Exec(ctx, statement, args...)
	return 0, err
}

// Two statements set a position. A damaged one takes a third.
func TestASoundPositionIsSetInTwoStatements(t *testing.T) {
	n, err := sqlschema.For(sqlschema.SQLite, "", "")
	if err != nil {
		t.Fatal(err)
	}
	tables, p := NewTables(n), store.Position{Consumer: "c", Partition: "0"}
	sound, damaged := new(sqltest.Recorder), new(sqltest.Recorder)
	if err := tables.Set(t.Context(), sound, p); err != nil || len(sound.Asked) != 2 {
		t.Errorf("%d statements, and %v", len(sound.Asked), err)
	}
	var refusal sqlschema.Refusal
	if err := tables.Set(t.Context(), unchanged{damaged}, p); !errors.As(err, &refusal) || len(damaged.Asked) != 3 {
		t.Errorf("of a row that no statement changes: %d statements, and %v", len(damaged.Asked), err)
	}
}

// everything calls all methods in all ways that make a difference for the SQL,
// and returns the statements that they sent.
func everything(t *testing.T, n sqlschema.Names) map[string][]any {
	t.Helper()
	ctx, r, all := t.Context(), new(sqltest.Recorder), NewTables(n)
	from := store.Position{Consumer: "c", Partition: "0", Epoch: 1}
	to := from
	to.Offset = 1
	m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "1", OrderingKey: "k"}}
	gone := m
	gone.State = store.Handled
	_, registered := all.Register(ctx, r, store.Consumer{Name: "c"})
	_, listed := all.Consumers(ctx, r)
	_, opened := all.Open(ctx, r, "c", "0")
	if opened == nil {
		t.Error("a row was opened that is not there")
	}
	if all.Set(ctx, unchanged{r}, to) == nil {
		t.Error("a row was set that is not there")
	}
	_, positions := all.Positions(ctx, r, "c")
	_, marked := all.Mark(ctx, r, from, to)
	text, args, moved := all.Move(from, to)
	r.Record(text, args)
	var lost sqlschema.Lost
	if err := all.Stands(ctx, r, from, to); !errors.As(err, &lost) {
		t.Errorf("a row that is not there stands: %v", err)
	}
	_, forgotten := all.Forget(ctx, r, time.Hour, 7)
	if err := errors.Join(registered, listed, positions, marked, moved, forgotten, all.Unmark(ctx, r, to),
		all.Shelve(ctx, r, []store.Shelved{m}), all.Change(ctx, r, m), all.Change(ctx, r, gone)); err != nil {
		t.Error(err)
	}
	for _, keys := range []int{1, 2, 9, 100} {
		for _, parkedToo := range []bool{true, false} {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint(i)
			}
			if _, err := all.Blocked(ctx, r, "c", names, parkedToo); err != nil {
				t.Error(err)
			}
		}
	}
	for _, q := range []store.ShelfQuery{{}, {Consumer: "c", OrderingKey: "k", Topic: "t", States: []store.ShelfState{1, 2}, IDs: []string{"1", "2"},
		Ready: true}, {OrderingKey: "k", IDs: []string{"1", "2"}, Bodiless: true, Ready: true, BehindParked: true}} {
		if _, err := all.Shelved(ctx, r, q); err != nil {
			t.Error(err)
		}
	}
	return r.Asked
}

func TestStatementsAreComplete(t *testing.T) {
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite, sqlschema.SQLServer} {
		n, err := sqlschema.For(d, "", "")
		if err != nil {
			t.Fatal(err)
		}
		all := everything(t, n)
		if len(all) < 20 {
			t.Errorf("dialect %v has %d statements only: the test does not call what it says", d, len(all))
		}
		sqltest.CheckComplete(t, d, all)
	}
}
