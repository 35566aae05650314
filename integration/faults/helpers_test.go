package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/store/sqlschema"
)

// childVar has the task of a child: a verb, an engine and a DSN.
const childVar = "ONCE_FAULTS_CHILD"

func TestMain(m *testing.M) {
	registerPause()
	if spec, ok := os.LookupEnv(childVar); ok {
		if err := child(strings.SplitN(spec, " ", 3)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const effectTable = "CREATE TABLE effect (name varchar(100) NOT NULL)"

// effect writes a row. Several rows may have the same name.
func effect(ctx context.Context, tx engine.Tx, name string) error {
	return tx.Exec(ctx, "INSERT INTO effect (name) VALUES ('"+name+"')")
}

func wantEffects(t *testing.T, d *engine.Database, name string, want int64) {
	t.Helper()
	if n := d.MustNumber(t, "SELECT count(*) FROM effect WHERE name = '"+name+"'"); n != want {
		t.Errorf("%d effects of %q, want %d", n, name, want)
	}
}

// with returns a fresh database with the tables of a store and one for effects.
func with(t *testing.T, e engine.Engine, settings ...string) (*engine.Database, string) {
	t.Helper()
	d, dsn := e.Migrated(t, settings...)
	d.MustExec(t, effectTable)
	return d, dsn
}

var (
	servers  = []string{engine.Postgres, engine.PGStore, engine.MariaDB}
	postgres = []string{engine.Postgres, engine.PGStore}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s returned %v, want %v", what, err, want)
	}
}

// waitFor polls until a condition holds.
func waitFor(what string, limit time.Duration, ok func() bool) error {
	end := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			return fmt.Errorf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
	return nil
}

func names(t testing.TB, e engine.Engine) sqlschema.Names {
	t.Helper()
	n, err := sqlschema.For(e.Dialect, "", "")
	must(t, err)
	return n
}

// bytesOf returns b as an SQL literal.
func bytesOf(e engine.Engine, b []byte) string {
	if e.Dialect == sqlschema.PostgreSQL {
		return fmt.Sprintf(`'\x%x'::bytea`, b)
	}
	return fmt.Sprintf("x'%x'", b)
}

// uuidOf returns an ID as an SQL literal.
func uuidOf(e engine.Engine, id [16]byte) string {
	if e.Dialect == sqlschema.PostgreSQL {
		return fmt.Sprintf("'%x'", id)
	}
	return fmt.Sprintf("x'%x'", id)
}

// keyColumn returns the quoted name of the key's column.
func keyColumn(e engine.Engine) string {
	if e.Dialect == sqlschema.MySQL {
		return "`key`"
	}
	return `"key"`
}

// never is work that must not run.
func never(t *testing.T, what string) func() error {
	return func() error {
		t.Errorf("%s: the work has run", what)
		return errors.New("must not run")
	}
}

// calls returns the ways to do a unit of work of an operation. A handler of
// DoTx may also run in a call whose claim is lost, and its statements may
// succeed before that turns out. So there, work counts as run when it was
// committed.
func calls(d *engine.Database, op *once.Operation[string], id string, work func() error) map[string]func(context.Context) (string, error) {
	u := op.For(id)
	return map[string]func(context.Context) (string, error){
		"Do": func(ctx context.Context) (string, error) {
			return once.Do(ctx, d.Store, u, func(context.Context, once.Key) (string, error) { return "answer", work() })
		},
		"DoTx": func(ctx context.Context) (string, error) {
			var report once.Report
			answer, err := once.DoTx(ctx, d.Store, u.Report(&report), func(ctx context.Context, tx engine.Tx) (string, error) {
				return "answer", effect(ctx, tx, ranIn(id))
			})
			if err == nil && !report.Replayed {
				err = work()
			}
			return answer, err
		},
		"InTx": func(ctx context.Context) (string, error) {
			tx, err := d.Begin(ctx)
			if err != nil {
				return "", err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it may have ended
			return once.InTx(ctx, d.Store, tx, u, func(context.Context) (string, error) { return "answer", work() })
		},
	}
}

// ranIn is the name of the effect of work that ran in DoTx of [calls].
func ranIn(id string) string { return "ran " + id }

// lines returns the lines that a child prints.
func lines(r *bufio.Scanner) <-chan string {
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		for r.Scan() {
			said <- r.Text()
		}
	}()
	return said
}
