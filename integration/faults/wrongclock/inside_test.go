package wrongclock

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/wrongclock"
	"github.com/effectively-once/once/store/storetest"
)

// TestInside runs in the process with the wrong clock.
func TestInside(t *testing.T) {
	name, dsn, ok := strings.Cut(os.Getenv(wrongclock.ServerVar), " ")
	if !ok {
		t.Skip("this is run by TestWrongClock, in a process whose clock is wrong")
	}
	e, err := engine.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	d := e.Connect(t, dsn)
	before := time.Now().Round(0)
	find(t, d, "right")
	wrongclock.Leave(t, d.Store, "wrong")
	worksThroughLapses(t, d)
	wrongclock.Check(t, before, time.UnixMicro(now(t, e, d)))
	conforms(t, e, d, dsn)
}

// conforms runs the cases of the suite that depend on time, and those of
// transactions.
func conforms(t *testing.T, e engine.Engine, d *engine.Database, dsn string) {
	if err := d.Exec(t.Context(), "CREATE TABLE effect (name varchar(255) NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	groups := []string{"claim", "lease", "takeover", "retention", "settle", "transact"}
	ran := 0
	for _, c := range storetest.TxCases(t, harness(e, d, dsn)) {
		group, _, _ := strings.Cut(c.Name, "/")
		if !slices.Contains(groups, group) {
			continue
		}
		ran++
		if err := c.Check(t.Context()); err != nil {
			t.Errorf("%s: %v\nthe rule: %s", c.Name, err, c.Rule)
		}
	}
	if ran < 30 {
		t.Errorf("only %d rules were checked", ran)
	}
}

func harness(e engine.Engine, d *engine.Database, dsn string) storetest.TxHarness[engine.Tx] {
	return storetest.TxHarness[engine.Tx]{
		Open:     func(tb testing.TB) once.TxStore[engine.Tx] { return e.Connect(tb, dsn).Store },
		Begin:    d.Begin,
		Commit:   func(ctx context.Context, tx engine.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx engine.Tx) error { return tx.Rollback(ctx) },
		Effect: func(ctx context.Context, tx engine.Tx, name string) error {
			return tx.Exec(ctx, "INSERT INTO effect (name) VALUES ('"+name+"')")
		},
		Count: func(ctx context.Context, name string) (int, error) {
			n, err := d.Number(ctx, "SELECT count(*) FROM effect WHERE name = '"+name+"'")
			return int(n), err
		},
		SeesInFlight: e.Name != engine.MariaDB,
	}
}
