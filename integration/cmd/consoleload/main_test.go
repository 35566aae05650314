package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
)

// Each page is served on a store that was filled with statements, and is one of the
// table.
func TestEachPageIsMeasured(t *testing.T) {
	for _, name := range []string{"sqlite", "postgres"} {
		t.Run(name, func(t *testing.T) {
			if name == "postgres" {
				testenv.Postgres(t)
			}
			var out, trouble bytes.Buffer
			if code := run(t.Context(), []string{"-store", name, "-keys", "1000", "-messages", "1000", "-requests", "1", "-limit", "1h"}, &out, &trouble); code != 0 {
				t.Fatalf("exit status %d: %s", code, trouble.String())
			}
			if rows := regexp.MustCompile(`(?m)^.{40} +1( +\d+\.\d){3} +\d+`).FindAllString(out.String(), -1); len(rows) != len((&visitor{}).pages()) {
				t.Errorf("%d pages are measured, want %d:\n%s", len(rows), len((&visitor{}).pages()), out.String())
			}
			out.Reset()
			if code := run(t.Context(), []string{"-store", name, "-keys", "1000", "-requests", "1", "-messages", "1000", "-limit", "1ns"}, &out, &trouble); code != 1 || !strings.Contains(trouble.String(), "above 1ns: overview") {
				t.Errorf("exit status %d, %s", code, trouble.String())
			}
		})
	}
}

// The rows are those that the store would have written: their keys are found, in the
// states that they are to have.
func TestRowsAreThoseOfTheStore(t *testing.T) {
	db, err := openSQLite(t.Context(), settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	if err := db.fill(t.Context(), settings{keys: 1000, messages: 1000}); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]once.Status{7: once.Unknown, 500: once.Parked, 13: once.Running, 0: once.Expired, 999: once.Done} {
		rec, err := db.store.Get(context.Background(), keyOf(i))
		if err != nil || rec.Status != want {
			t.Errorf("key %d, %v, is %v, want %v: %v", i, keyOf(i), rec.Status, want, err)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range []string{"-keys 10", "-store mysql", "-requests 0", "x", "-none"} {
		var out, trouble bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &trouble); code != 2 || !strings.Contains(trouble.String(), "usage: consoleload") {
			t.Errorf("%s: exit status %d, %s", args, code, trouble.String())
		}
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, &out, &out); code != 0 || out.String() != usage {
		t.Errorf("-h: %d, %s", code, out.String())
	}
}
