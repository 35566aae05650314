// Package wrongclock runs the stores in a process whose wall clock is wrong.
//
// This shows that on a server no claim, lease or retention depends on the clock
// of a client. It shows nothing about SQLite, whose clock is that of the
// machine.
package wrongclock

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/wrongclock"
)

var servers = []string{engine.Postgres, engine.PGStore, engine.MariaDB}

func TestWrongClock(t *testing.T) {
	dir := t.TempDir()
	built := sync.OnceValues(func() (string, error) { return wrongclock.Build(t.Context(), dir, ".") }) // it takes a while, in vain without a server
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		for _, how := range wrongclock.Ways {
			t.Run(how, func(t *testing.T) {
				d, dsn := e.Migrated(t)
				program, err := built()
				if err != nil {
					t.Fatal(err)
				}
				wrongclock.Leave(t, d.Store, "right")
				began := now(t, e, d)
				cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestInside$", "-test.v")
				cmd.Env = append(os.Environ(), wrongclock.Var+"="+how, wrongclock.ServerVar+"="+e.Name+" "+dsn)
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), "--- PASS: TestInside") {
					t.Fatalf("with a clock that is %s: %v\n%s", how, err, out)
				}
				find(t, d, "wrong")
				n := d.MustNumber(t, fmt.Sprintf("SELECT count(*) FROM once_record WHERE id LIKE 'wrong%%' AND created >= %d AND created <= %d", began, now(t, e, d)))
				if n < 4 {
					t.Errorf("%d records of the process with the wrong clock have the database's time, want at least 4", n)
				}
			})
		}
	}, servers...)
}

// now returns the time of the database in microseconds since 1970.
func now(t *testing.T, e engine.Engine, d *engine.Database) int64 {
	query := "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
	if e.Name == engine.MariaDB {
		query = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
	}
	return d.MustNumber(t, query)
}

// find checks the records of a process with another clock, and that Forget
// drops only those that are due.
func find(t *testing.T, d *engine.Database, who string) {
	t.Helper()
	for range 2 { // before and after Forget
		wrongclock.Find(t, d.Store, who, 0)
		if _, err := d.Store.Forget(t.Context(), 1000); err != nil {
			t.Error(err)
		}
	}
	if n := d.MustNumber(t, "SELECT count(*) FROM once_record WHERE operation = 'clock' AND id LIKE '"+who+"%'"); n != 4 {
		t.Errorf("%d records of the process with the %s clock are left, want 4", n, who)
	}
}

// worksThroughLapses does work that takes longer than its lease, with a wrong
// clock.
func worksThroughLapses(t *testing.T, d *engine.Database) {
	t.Helper()
	op := &once.Operation[string]{Name: "clock", OnUnknown: once.Park, Policy: once.Policy{Lease: 4 * time.Second}} // a busy database may take a second for a heartbeat
	_, err := once.Do(t.Context(), d.Store, op.For("heartbeat"), func(ctx context.Context, _ once.Key) (string, error) {
		timer := time.NewTimer(9 * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return "answer", nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	if err != nil {
		t.Errorf("work that is longer than two leases: %v", err)
	}
}
