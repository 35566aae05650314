package main

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/bench"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// Keys whose holder was killed have no end of their own.
func TestBenchFreesWhatAKilledOneLeft(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	at := open(t, from)
	left := once.Key{Operation: bench.Operation, ID: "left"}
	if err := bring(t.Context(), at.Store, left, once.Unknown); err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(t.Context(), at, bench.Options{Workers: 1, Length: 10 * time.Millisecond})
	if err != nil || r.Keys.Err != nil || time.Until(r.Keys.Due) > time.Minute {
		t.Fatalf("%v, and the keys %+v", err, r.Keys)
	}
	wantNoTrace(t, at)
	if rec, err := at.Store.Get(t.Context(), left); err != nil || rec.Status != once.Absent {
		t.Errorf("it is %v still (%v)", rec.Status, err)
	}
	other := once.Key{Operation: "pay/charge", ID: "cut off"} // which is for a person to decide
	if rec, err := at.Store.Get(t.Context(), other); err != nil || rec.Status != once.Unknown {
		t.Errorf("another key has become %v (%v)", rec.Status, err)
	}
}

// A table created while the question is on the screen is not dropped.
func TestBenchLeavesAnotherTableAlone(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	at := open(t, from)
	if _, err := at.Tables.DB.Exec("CREATE TABLE once_bench (body text)"); err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Run(t.Context(), at, bench.Options{Workers: 1}); err == nil || errors.Is(err, bench.ErrStays) {
		t.Errorf("it ran, and returned %v", err)
	}
	if columns, err := at.Tables.Columns(t.Context(), "bench"); err != nil || len(columns) != 1 {
		t.Errorf("the table has the columns %v (%v)", columns, err)
	}
}

// wantNoTrace looks for the scratch table, and for keys that stay.
func wantNoTrace(t *testing.T, at *target.Target) {
	t.Helper()
	if columns, err := at.Tables.Columns(t.Context(), "bench"); err != nil || len(columns) > 0 {
		t.Errorf("the scratch table is still there: %v %v", columns, err)
	}
	staying, made := 0, 0
	err := at.Tables.DB.QueryRowContext(t.Context(), "SELECT count(*), count(CASE WHEN due <= key_until AND key_until <= "+at.Tables.Names.Now()+
		" + 60000000 THEN NULL ELSE 1 END) FROM "+at.Tables.Names.Table()+" WHERE operation = 'once-bench'").Scan(&made, &staying)
	if err != nil || staying > 0 || made == 0 {
		t.Errorf("%d of %d keys stay (%v)", staying, made, err)
	}
}
