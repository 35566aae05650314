//go:build linux

package publish

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/store"
)

// TestRelayThatSleptThroughItsLease stops a relay for longer than its lease,
// after it has published and before it has settled. Another relay has its lanes
// by then, and cannot publish the same messages. So they have to stay, although
// the first relay then says that they were sent.
func TestRelayThatSleptThroughItsLease(t *testing.T) {
	t.Parallel()
	beside(t, 3, allEngines, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		if w.Postgres() { // who reads the log and is silent loses it by this
			name := w.DSN[strings.LastIndex(w.DSN, "/")+1:]
			name, _, _ = strings.Cut(name, "?")
			w.Exec(t, "ALTER DATABASE "+name+" SET wal_sender_timeout = '1s'")
		}
		var refused sync.Map // by id
		p.set(false, func(relay string, s sheet) error {
			if relay == "heir" {
				refused.Store(s.ID, true)
				return errors.New("not yet")
			}
			return nil
		})
		all := w.putSome(t, "m", 10)
		asleep := plan{Base: w.Place, Role: roleRelay, Name: "sleeper", Press: p.url, Lease: 2 * time.Second, Waits: true}
		sleeper := fleet.Start(t, asleep)
		sleeper.Hear(t, saysSends)
		stopOutsideOfTransactions(t, w, sleeper)
		t.Cleanup(func() { sleeper.Signal(syscall.SIGKILL) })
		had := p.all()

		awake := asleep
		awake.Name, awake.Waits = "heir", false
		awake.Lease = time.Minute // so that it does not hand lanes to the one that wakes before that has said anything
		heir := fleet.Start(t, awake)
		await(t, "the heir has tried all that the sleeper has published", func() bool {
			return !slices.ContainsFunc(had, func(p print) bool {
				_, tried := refused.Load(p.ID)
				return !tried
			})
		})
		sleeper.Signal(syscall.SIGCONT)
		sleeper.Tell(t)
		said := sleeper.Hear(t, saysSent)
		if mode(w.Place) == 0 { // what is in the table is the heir's
			if said != saysSent+" 0" {
				t.Errorf("the relay that had lost its lanes has changed rows: %q", said)
			}
			if n := w.waits(t); n != len(all) {
				t.Errorf("%d messages wait, and not all %d", n, len(all))
			}
		}
		sleeper.Signal(syscall.SIGKILL)
		<-sleeper.Ended()
		if mode(w.Place) != 0 { // what the reader of a log had read before it slept, it also publishes when it wakes
			had = p.all()
		}
		p.set(false, nil)
		p.await(t, all)
		more := w.putSome(t, "n", 10)
		p.await(t, more)
		settled(t, patience, func() []string { return w.waiting(t) })
		heir.Leave(t)
		v := judge(w.made(t), p.all())
		v.check(t, true)
		repeatable := make(map[string]bool)
		for _, p := range had {
			repeatable[p.ID] = true
		}
		for _, id := range v.doubled {
			if !repeatable[id] {
				t.Errorf("%s is not of the batch that was on its way, and was published twice", id)
			}
		}
		if len(v.doubled) > len(had) {
			t.Errorf("%d messages were repeated, and the batch had %d", len(v.doubled), len(had))
		}
		if left := w.outgoing(t, store.Stuck); len(left) > 0 {
			t.Errorf("%d messages are stuck", len(left))
		}
	})
}

// stopOutsideOfTransactions stops a process outside of its transactions. In
// SQLite, a stopped writer would keep its lock, so a process that was writing
// is continued and stopped again.
func stopOutsideOfTransactions(t *testing.T, w *world, p *fleet.Process) {
	t.Helper()
	p.Stop(t)
	if w.Engine != sqlite {
		return
	}
	pool, err := busyFor(w.Place, 0).Open(1)
	must(t, err)
	t.Cleanup(pool.Close)
	await(t, "the process is stopped, and holds no lock", func() bool {
		tx, err := pool.SQL.Begin()
		if err == nil {
			must(t, tx.Rollback())
			return true
		}
		p.Signal(syscall.SIGCONT)
		pause(time.Millisecond)
		p.Stop(t)
		return false
	})
}

// TestRelayThatVanishesWhileItLeases loses a relay between two statements of a
// lease, and the database does not notice, as after a power failure of the
// machine. Other relays must not wait for its locks much longer than for its
// lease.
func TestRelayThatVanishesWhileItLeases(t *testing.T) {
	t.Parallel()
	beside(t, 2, []string{pgTable, mariaDB}, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		protocol := wire.Postgres
		if engine == mariaDB {
			protocol = wire.MySQL
		}
		proxy, through := wire.Between(t, w.DSN, protocol)
		t.Cleanup(proxy.Cut)
		rule := proxy.On(wire.Runs("once_relay"), wire.SplitRequest)
		gone := fleet.Start(t, plan{Base: engines.Place{Engine: engine, DSN: through}, Role: roleRelay, Name: "gone",
			Press: p.url, Lease: 2 * time.Second})
		select {
		case <-rule.Done():
		case <-time.After(patience):
			t.Fatalf("no lease was asked for: %s", gone.Complaints())
		}
		gone.Signal(syscall.SIGKILL)
		stop := run(t, w.relay(t, p))
		begun := time.Now()
		p.await(t, w.putSome(t, "m", 10))
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %v until another relay could publish", took.Round(time.Second))
		}
		stop()
	})
}
