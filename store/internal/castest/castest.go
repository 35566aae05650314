// Package castest tests how engines of package cas store their rows.
package castest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// cell is an engine with one row, which can be damaged.
type cell struct {
	row cas.Stored
	err error
}

func (c *cell) Load(context.Context, once.Key) (cas.Stored, error) { return c.row, c.err }

func (c *cell) Put(_ context.Context, row cas.Row, over string) (cas.Stored, error) {
	if c.err != nil {
		return cas.Stored{}, c.err
	}
	if over != c.row.Version {
		return c.row, cas.ErrStale
	}
	c.row = cas.Stored{Row: row, Version: over + "+"}
	return c.row, nil
}

func (*cell) Now(context.Context) (cas.Now, error) {
	return cas.Exactly(cas.Instant(time.Now().UnixMicro())), nil
}

// Finished returns the row of work that is done, and answered "paid".
func Finished(t testing.TB) cas.Row {
	t.Helper()
	c := new(cell)
	runs := 0
	if got, err := do(t, c, &runs); got != "paid" || err != nil {
		t.Fatalf("Do returned %q, %v", got, err)
	}
	return c.row.Row
}

// shop is the store of an adapter.
type shop struct{ *cas.Store }

func (*shop) Forget(context.Context, int) (int, error) { return 0, nil }

func do(t testing.TB, c *cell, runs *int) (string, error) {
	work := pay.For("1").In("shop").Input([]byte("4999")).CausedBy(once.Key{Operation: "order", ID: "7"}.String())
	return once.Do(t.Context(), &shop{cas.New(c, c, once.Options{}.Ready())}, work, func(context.Context, once.Key) (string, error) {
		*runs++
		return "paid", nil
	})
}

// EveryBit damages the stored form of finished work, bit by bit: it consists of
// parts, each of which is changed by itself. Whatever the bit, the work does not run
// again: a repeat gets its answer, or once.ErrCorrupt.
func EveryBit(t *testing.T, stored [][]byte, decode func([][]byte) (cas.Row, error)) {
	t.Helper()
	bits, silent := 0, 0
	try := func(what string, i, bit int) {
		row, err := decode(stored)
		c := &cell{cas.Stored{Row: row, Version: "1"}, err}
		runs := 0
		got, err := do(t, c, &runs)
		if runs > 0 || !(got == "paid" && err == nil || errors.Is(err, once.ErrCorrupt)) {
			t.Errorf("%s, bit %d of part %d: Do returned %q, %v after %d runs: %q", what, bit, i, got, err, runs, stored[i])
		}
		if err == nil {
			silent++
		}
		bits++
	}
	try("undamaged", 0, -1)
	if silent != 1 {
		t.Fatal("the row is not what was stored")
	}
	for i, part := range stored {
		for bit := range 8 * len(part) {
			part[bit/8] ^= 1 << (bit % 8)
			try("damaged", i, bit)
			part[bit/8] ^= 1 << (bit % 8)
		}
	}
	t.Logf("%d bits, of which %d change nothing", bits-1, silent-1)
}

// Kept is Finished for a row that is never forgotten, to be kept as a sample.
func Kept(t testing.TB) cas.Row {
	t.Helper()
	row := Finished(t)
	row.KeepOutcome, row.KeepKey = never, never
	return row
}

var never = cas.Instant(time.Date(2300, 1, 2, 3, 4, 5, 678901000, time.UTC).UnixMicro())

// Formats checks that every format in which builds have stored finished work is
// read for ever: testdata/formats has a sample of each. stored is what this build
// stores of Kept. A format without a sample fails, and its sample is written.
func Formats(t *testing.T, stored []byte, decode func([]byte) (cas.Row, error)) {
	t.Helper()
	const dir = "testdata/formats"
	latest := filepath.Join(dir, fmt.Sprint(cas.Format))
	if _, err := os.Stat(latest); err != nil {
		t.Errorf("there is no sample of the format that this build stores: %s was written, keep it for ever: %v", latest,
			errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(latest, stored, 0o644)))
	}
	samples, err := os.ReadDir(dir)
	if err != nil || len(samples) < 2 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(filepath.Join(dir, sample.Name()))
		if err != nil {
			t.Fatal(err)
		}
		row, err := decode(text)
		c, runs := &cell{cas.Stored{Row: row, Version: "1"}, err}, 0
		if got, err := do(t, c, &runs); got != "paid" || err != nil || runs > 0 {
			t.Errorf("%s: Do returned %q, %v after %d runs", sample.Name(), got, err, runs)
		}
	}
}

// Newer checks that a record of the next format is refused, and says why. next is
// what this build stores, with another format.
func Newer(t *testing.T, next cas.Row, err error) {
	t.Helper()
	if !errors.Is(err, once.ErrCorrupt) || !strings.Contains(err.Error(), "newer build") {
		t.Errorf("a record of the next format was read as %+v, %v", next, err)
	}
}
