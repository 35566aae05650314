//go:build linux

package publish

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/internal/testenv"
)

// putSome commits messages, each in a transaction of its own.
func (w *world) putSome(t testing.TB, prefix string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		must(t, w.own(t.Context(), func(x tx) error { return put(x, id, "", false) }))
		ids = append(ids, id)
	}
	return ids
}

func (p *press) await(t testing.TB, ids []string) {
	t.Helper()
	settled(t, patience, func() []string { return p.missing(ids...) })
}

// All engines but SQLite allow concurrent writing transactions.
var concurrent = []string{pgTable, pgRows, pgLog, mariaDB}

// burn uses up numbers of the sequence, as minutes of rolled back transactions
// do.
func (w *world) burn(t testing.TB) {
	t.Helper()
	switch {
	case w.Engine == mariaDB:
		x, end, err := w.begin(t.Context())
		must(t, err)
		must(t, x.exec(w.byHand(), 1_000_000, 0, "burnt"))
		must(t, end.rollback())
	case w.Postgres():
		w.Exec(t, "SELECT setval(pg_get_serial_sequence('"+table+"', 'seq'), 1000000)")
	}
}

// TestSlowTransactionIsNotSkipped keeps the first transaction open while later
// ones commit and are published. Relays stop and start meanwhile.
func TestSlowTransactionIsNotSkipped(t *testing.T) {
	t.Parallel()
	beside(t, 2, concurrent, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		stop := run(t, w.relay(t, p))
		p.await(t, w.putSome(t, "before", 5))

		var slow []ending
		for i, key := range []string{"k0", ""} {
			x, end, err := w.begin(t.Context())
			must(t, err)
			t.Cleanup(func() { _ = end.rollback() }) // an error if it was committed, as it should be
			must(t, put(x, fmt.Sprint("slow", i), key, false))
			slow = append(slow, end)
		}
		p.await(t, w.putSome(t, "meanwhile", 50))
		w.burn(t)
		p.await(t, w.putSome(t, "later", 50))
		stop()
		stop = run(t, w.relay(t, p))
		p.await(t, w.putSome(t, "with-another-relay", 5))
		if len(p.missing("slow0", "slow1")) < 2 {
			t.Error("what was not committed is published")
		}
		for _, end := range slow {
			must(t, end.commit())
		}
		p.await(t, []string{"slow0", "slow1"})
		settled(t, patience, func() []string { return w.waiting(t) })
		stop()
		judge(w.made(t), p.all()).check(t, false)
	})
}

// byHand is the statement of a client that knows only the table, and sets the
// number of the row.
func (w *world) byHand() string {
	override := ""
	if w.Postgres() {
		override = " OVERRIDING SYSTEM VALUE"
	}
	return "INSERT INTO " + table + " (seq, lane, id, topic, body)" + override + " VALUES (?, ?, ?, 'orders', '0')"
}

// TestSecondWriterWithLowNumbers inserts rows whose numbers are far below
// published ones.
func TestSecondWriterWithLowNumbers(t *testing.T) {
	t.Parallel()
	beside(t, 2, []string{pgTable, pgRows, mariaDB, sqlite}, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		w.burn(t)
		stop := run(t, w.relay(t, p))
		p.await(t, w.putSome(t, "usual", 20))
		var low []string
		for i := range 16 {
			low = append(low, fmt.Sprint("low", i))
			must(t, w.own(t.Context(), func(x tx) error { // lowest last
				id := low[i]
				if err := x.exec(addMade, id, "", 0); err != nil {
					return err
				}
				return x.exec(w.byHand(), 100-i, i, id)
			}))
		}
		p.await(t, low)
		p.await(t, w.putSome(t, "after", 20))
		settled(t, patience, func() []string { return w.waiting(t) })
		stop()
		judge(w.made(t), p.all()).check(t, false)
	})
}

// TestRestoredDump dumps a database in which messages wait. A relay continues
// in a database restored from it, also after the sequence was set back.
func TestRestoredDump(t *testing.T) {
	t.Parallel()
	beside(t, 2, []string{pgTable, pgRows, pgLog}, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		stop := run(t, w.relay(t, p))
		p.await(t, w.putSome(t, "published", 30))
		settled(t, patience, func() []string { return w.waiting(t) })
		stop()
		waiting := w.putSome(t, "waiting", 30)

		restored := w.copyOf(t)
		again := newPress(t, 2)
		if engine == pgLog { // what was in the log only is lost, and it is said
			refused := restored.own(t.Context(), func(x tx) error { return put(x, "refused", "", false) })
			if refused == nil {
				t.Error("a message was put into a log that nobody reads")
			}
			must(t, restored.reset(t.Context()))
			restored.prepare(t)
			restored.Exec(t, "DELETE FROM made WHERE id LIKE 'waiting%'")
			waiting = nil
		}
		stop = run(t, restored.relay(t, again))
		if len(waiting) > 0 {
			again.await(t, waiting)
		}
		again.await(t, restored.putSome(t, "restored", 30))
		settled(t, patience, func() []string { return restored.waiting(t) })

		restored.Exec(t, "SELECT setval(pg_get_serial_sequence('"+table+"', 'seq'), 1, false)")
		again.await(t, restored.putSome(t, "from-one", 30))
		settled(t, patience, func() []string { return restored.waiting(t) })
		stop()
		restored.Exec(t, "DELETE FROM made WHERE id LIKE 'published%'") // by the relay of the other database
		judge(restored.made(t), again.all()).check(t, false)
	})
}

// copyOf dumps a database and restores it under another name.
func (w *world) copyOf(t testing.TB) *world {
	t.Helper()
	other := engines.New(t, w.Engine)
	dump := exec.CommandContext(t.Context(), postgresProgram(t, "pg_dump"), "--no-owner", clientDSN(t, w.DSN))
	text, err := dump.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v: %s", err, err.(*exec.ExitError).Stderr)
	}
	psql(t, other.DSN, string(text))
	return newWorldAt(t, other)
}

// psql runs a script.
func psql(t testing.TB, dsn, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), postgresProgram(t, "psql"), "-qX", "-v", "ON_ERROR_STOP=1", clientDSN(t, dsn))
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
}

// clientDSN returns the DSN for PostgreSQL's own programs.
func clientDSN(t testing.TB, dsn string) string {
	u, err := url.Parse(dsn)
	must(t, err)
	return u.String()
}

// postgresProgram finds a program that is at least as new as the server.
func postgresProgram(t testing.TB, name string) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	must(t, err)
	if len(found) > 0 {
		return found[len(found)-1]
	}
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv(testenv.RequireVar) != "1" {
		t.Skipf("%s is not installed: \"make test\" does that", name)
	}
	must(t, err)
	return path
}
