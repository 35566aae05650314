package faults

import (
	"bufio"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlschema"
)

const (
	due, halfDue, kept = 60, 15, 15 // keys past their KeepKey, keys past only their KeepOutcome, keys that stay
	slice              = 10         // the limit of one Forget
)

func forgetKey(kind string, i int) once.Key {
	return once.Key{Operation: "forget", ID: fmt.Sprintf("%s %03d", kind, i)}
}

// settledAll makes n Done records in one transaction.
func settledAll(t *testing.T, d *engine.Database, kind string, n int, keepOutcome, keepKey time.Duration) {
	t.Helper()
	var rs []once.ClaimRequest
	for i := range n {
		rs = append(rs, once.ClaimRequest{Fence: once.Fence{Key: forgetKey(kind, i), Owner: [16]byte{1}}, Lease: time.Minute, Wait: 20 * time.Second})
	}
	_, err := d.Store.Transact(t.Context(), rs, func(_ engine.Tx, recs []once.Record) (sets []once.Settlement, _ error) {
		for _, rec := range recs {
			sets = append(sets, once.Settlement{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done,
				Outcome: once.Outcome{Body: []byte(rec.Key.ID)}, KeepOutcome: keepOutcome, KeepKey: keepKey})
		}
		return sets, nil
	})
	must(t, err)
}

// gate blocks Forget in the middle of a statement: at the row of one key.
type gate struct {
	create, drop []string
	shut, open   string // in a transaction of the test
	waits        string // a query for how many wait at the gate
}

const gateNumber = 4711

func gateOf(e engine.Engine, schemaHash int64) gate {
	number := fmt.Sprint(gateNumber, ", ", schemaHash)
	switch e.Dialect {
	case sqlschema.PostgreSQL:
		return gate{
			create: []string{"CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(" + number + "); RETURN OLD; END $$",
				"CREATE TRIGGER gate BEFORE DELETE ON once_record FOR EACH ROW WHEN (OLD.id = 'due 030') EXECUTE FUNCTION gate()"},
			drop: []string{"DROP TRIGGER gate ON once_record"},
			shut: "SELECT count(pg_advisory_lock(" + number + "))", open: "SELECT count(pg_advisory_unlock(" + number + "))",
			waits: fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %d AND objid = %d", gateNumber, schemaHash),
		}
	case sqlschema.MySQL:
		lock := fmt.Sprintf("'gate %d'", schemaHash)
		return gate{
			create: []string{"CREATE TRIGGER gate BEFORE DELETE ON once_record FOR EACH ROW BEGIN IF OLD.id = 'due 030' THEN DO GET_LOCK(" + lock + ", 60); END IF; END"},
			drop:   []string{"DROP TRIGGER gate"},
			shut:   "SELECT GET_LOCK(" + lock + ", 10)", open: "SELECT RELEASE_LOCK(" + lock + ")",
			waits: "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()",
		}
	default:
		return gate{
			create: []string{"CREATE TRIGGER gate BEFORE DELETE ON once_record WHEN OLD.id = 'due 030' BEGIN SELECT pause(); END"},
			drop:   []string{"DROP TRIGGER gate"},
		}
	}
}

const paused = "paused"

// registerPause registers an SQLite function that never returns in a child.
func registerPause() {
	sqlite.MustRegisterScalarFunction("pause", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		if _, ok := os.LookupEnv(childVar); ok {
			fmt.Println(paused)
			select {}
		}
		return int64(0), nil
	})
}

// child forgets slice by slice, and prints how many.
func child(spec []string) error {
	e, err := engine.Named(spec[0])
	if err != nil {
		return err
	}
	d, err := e.Open(spec[1])
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		n, err := d.Store.Forget(context.Background(), slice)
		fmt.Println(n)
		if err != nil || n < slice {
			return err
		}
	}
}

// TestForgetKilled kills the process that forgets in the middle of a statement.
func TestForgetKilled(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, dsn := with(t, e)
		halfway(t, e, d, func(waiting func() bool) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVar+"="+e.Name+" "+dsn)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			said := lines(bufio.NewScanner(out))
			inTheMiddle := waitFor("the child is in the middle", testenv.Patience, func() bool {
				select {
				case line := <-said:
					return line == paused
				default:
					return waiting()
				}
			})
			must(t, cmd.Process.Kill())
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Errorf("the child ended by itself: %v", err)
			}
			must(t, inTheMiddle)
		})
	})
}

// TestForgetCutOff closes the connection of Forget in the middle of a
// statement.
func TestForgetCutOff(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, dsn := with(t, e)
		halfway(t, e, d, func(waiting func() bool) {
			ended := make(chan error, 1)
			cleaner := e.Connect(t, dsn)
			go func() {
				for {
					if _, err := cleaner.Store.Forget(context.Background(), slice); err != nil {
						ended <- err
						return
					}
				}
			}()
			must(t, waitFor("Forget is in the middle", testenv.Patience, waiting))
			cut := "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = " + strconv.Itoa(gateNumber)
			if e.Dialect == sqlschema.MySQL {
				id := d.MustNumber(t, "SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()")
				d.MustExec(t, fmt.Sprintf("KILL CONNECTION %d", id))
			} else {
				d.MustNumber(t, cut)
			}
			select {
			case err := <-ended:
				t.Logf("Forget returned %v", err)
			case <-time.After(testenv.Patience):
				t.Error("Forget did not return when its connection was gone")
			}
		})
	}, servers...)
}

// halfway blocks forgetting in the middle of a statement and stops it there. It
// checks that no key answers wrongly then, and that forgetting again finishes.
func halfway(t *testing.T, e engine.Engine, d *engine.Database, stop func(waiting func() bool)) {
	settledAll(t, d, "due", due, time.Millisecond, time.Millisecond)
	settledAll(t, d, "half", halfDue, time.Millisecond, time.Hour)
	settledAll(t, d, "kept", kept, time.Hour, time.Hour)
	g := gateOf(e, time.Now().UnixNano()%1_000_000_000)
	d.MustExec(t, g.create...)
	defer finishForgetting(t, d)
	open, waiting := shutGate(t, d, g)
	defer open() // before the next Forget, which would wait at the gate
	stop(waiting)
	rightAnswers(t, d, true)
	open()
	must(t, waitFor("the gate can be removed", testenv.Patience, func() bool { return d.Exec(t.Context(), g.drop[0]) == nil }))
}

// shutGate shuts the gate. It returns a function that opens it, and one that
// reports whether a call waits there. The gate of SQLite is always shut, and
// only for children.
func shutGate(t *testing.T, d *engine.Database, g gate) (open func(), waiting func() bool) {
	t.Helper()
	if g.shut == "" {
		return func() {}, func() bool { return false }
	}
	holder, err := d.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) }) // it has written nothing
	_, err = holder.Number(t.Context(), g.shut)
	must(t, err)
	open = sync.OnceFunc(func() {
		if _, err := holder.Number(t.Context(), g.open); err != nil {
			t.Error(err)
		}
	})
	return open, func() bool { n, err := d.Number(t.Context(), g.waits); return err == nil && n == 1 }
}

// rightAnswers checks the answer of each key, whatever was forgotten.
func rightAnswers(t *testing.T, d *engine.Database, some bool) {
	t.Helper()
	for kind, want := range map[string]once.Status{"due": once.Absent, "half": once.Expired, "kept": once.Done} {
		for i := range map[string]int{"due": due, "half": halfDue, "kept": kept}[kind] {
			rec, err := d.Store.Get(t.Context(), forgetKey(kind, i))
			if err != nil || rec.Status != want || want == once.Done && string(rec.Outcome.Body) != rec.Key.ID {
				t.Errorf("%v answers %v %q, %v; want %v", forgetKey(kind, i), rec.Status, rec.Outcome.Body, err, want)
			}
		}
	}
	if left := d.MustNumber(t, "SELECT count(*) FROM once_record"); some && (left == due+halfDue+kept || left <= halfDue+kept) {
		t.Errorf("%d records are left: that was not in the middle", left)
	}
}

func finishForgetting(t *testing.T, d *engine.Database) {
	t.Helper()
	err := waitFor("forgetting finishes", testenv.Patience, func() bool {
		n, err := d.Store.Forget(t.Context(), slice)
		return err == nil && n == 0
	})
	must(t, err)
	rightAnswers(t, d, false)
	if left := d.MustNumber(t, "SELECT count(*) FROM once_record"); left != halfDue+kept {
		t.Errorf("%d records are left, want %d", left, halfDue+kept)
	}
	if bodies := d.MustNumber(t, "SELECT count(*) FROM once_record WHERE outcome IS NOT NULL"); bodies != kept {
		t.Errorf("%d outcomes are left, want %d", bodies, kept)
	}
	rec, err := d.Store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: forgetKey("due", 30), Owner: [16]byte{2}}, Lease: time.Minute})
	if err != nil || rec.Attempt != 1 || rec.Owner != [16]byte{2} {
		t.Errorf("a forgotten key is claimed as %+v, %v; want it new", rec, err)
	}
}
