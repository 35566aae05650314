//go:build linux

package publish

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/outbox"
)

// presenceEngines are those on which others see that a process has ended.
var presenceEngines = []string{pgTable, pgSQL, mariaDB, sqlite}

const (
	defaultLease = 8 * time.Second // of an outbox.Relay
	goneTime     = 3 * time.Second // until the lanes of a process that has ended are free
)

// logText is a log that a relay writes and the test reads.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logText) has(text string) bool { return strings.Contains(l.String(), text) }

// heir returns a relay in this process that writes to a log.
func (w *world) heir(t testing.TB, p *press, l *logText) *outbox.Relay {
	r := w.relay(t, p)
	r.Lease, r.Logger = defaultLease, slog.New(slog.NewTextHandler(l, nil))
	return r
}

// drag measures by how much longer than on an idle machine short pauses and commits
// took, altogether.
type drag struct {
	stop, stopped chan struct{}
	sum           time.Duration
}

func startDrag(t testing.TB, w *world) *drag {
	d := &drag{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(d.stopped)
		for {
			begun := time.Now()
			err := w.own(t.Context(), func(x tx) error { return x.exec(addTurn, "k0") })
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-d.stop:
				return
			case <-time.After(10 * time.Millisecond):
				d.sum += max(time.Since(begun)-20*time.Millisecond, 0)
			}
		}
	}()
	return d
}

// end returns the sum.
func (d *drag) end() time.Duration {
	close(d.stop)
	<-d.stopped
	return d.sum
}

// killed starts a relay in a process, which has lanes when killed returns, and
// another in this process, beside it or after it was killed. It returns how long
// after the kill all lanes are published from, and how much of that is due to a
// machine that is slow.
func (w *world) killed(t *testing.T, p *press, l *logText, beside bool) (took, slow time.Duration) {
	t.Helper()
	gone := fleet.Start(t, plan{Base: w.Place, Role: roleRelay, Name: "gone", Press: p.url, Lease: defaultLease})
	p.await(t, w.putSome(t, "a", 20))
	heir := w.heir(t, p, l)
	if beside {
		run(t, heir)
		n := 0
		await(t, "both relays have lanes", func() bool {
			n++
			p.await(t, w.putSome(t, fmt.Sprintf("b%d-", n), 10))
			return p.relays() == 2
		})
	}
	stopOutsideOfTransactions(t, w, gone)
	d := startDrag(t, w)
	begun := time.Now()
	gone.Signal(syscall.SIGKILL)
	if !beside {
		run(t, heir)
	}
	var ids []string
	must(t, w.own(t.Context(), func(x tx) error {
		for i := range 100 {
			ids = append(ids, fmt.Sprint("c", i))
			if err := put(x, ids[i], "", false); err != nil {
				return err
			}
		}
		return nil
	}))
	p.await(t, ids)
	return time.Since(begun), d.end()
}

// TestLanesOfAKilledRelayAreFreeInThreeSeconds kills a relay, and another one has
// its lanes long before the leases lapse, and says what it waits for.
func TestLanesOfAKilledRelayAreFreeInThreeSeconds(t *testing.T) {
	t.Parallel()
	beside(t, 2, presenceEngines, func(t *testing.T, engine string) {
		for _, side := range []bool{false, true} {
			w, p, l := newWorldOn(t, engine), newPress(t, 1), new(logText)
			took, slow := w.killed(t, p, l, side)
			t.Logf("beside another: %v: %v, and the machine was slow by %v", side, took, slow)
			if took > goneTime+2*slow {
				t.Errorf("the lanes of a relay that was killed were free after %v, want %v and twice the %v by which the machine was slow",
					took, goneTime, slow)
			}
			if took < defaultLease/2 && !l.has("whose process is gone") {
				t.Errorf("the log does not say that the process is gone:\n%s", l)
			}
		}
	})
}

// TestARelayThatIsStoppedKeepsItsLanes stops a process. Its lock stays, so it has its
// lanes until the leases lapse, as if there were no presence.
func TestARelayThatIsStoppedKeepsItsLanes(t *testing.T) {
	t.Parallel()
	beside(t, 3, presenceEngines, func(t *testing.T, engine string) {
		w, p, l := newWorldOn(t, engine), newPress(t, 1), new(logText)
		asleep := fleet.Start(t, plan{Base: w.Place, Role: roleRelay, Name: "asleep", Press: p.url, Lease: defaultLease})
		p.await(t, w.putSome(t, "a", 20))
		stopOutsideOfTransactions(t, w, asleep)
		t.Cleanup(func() { asleep.Signal(syscall.SIGKILL) })
		run(t, w.heir(t, p, l))
		p.await(t, w.putSome(t, "b", 50))
		if l.has("is gone") {
			t.Errorf("the log about a stopped process:\n%s", l)
		}
		asleep.Signal(syscall.SIGCONT)
		p.await(t, w.putSome(t, "c", 50))
		if v := judge(w.made(t), p.all()); len(v.unordered) > 0 || len(v.renumbered) > 0 {
			t.Errorf("%v", v)
		}
	})
}

// TestARelayWhoseConnectionsBreakBeginsAnew breaks all connections of a relay again
// and again, while another one has half of the lanes and messages with few ordering
// keys are put. None is lost or out of order.
func TestARelayWhoseConnectionsBreakBeginsAnew(t *testing.T) {
	t.Parallel()
	beside(t, 2, []string{pgTable, pgSQL, mariaDB}, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		protocol, look := wire.Postgres, "pg_try_advisory_xact_lock_shared"
		if engine == mariaDB {
			protocol, look = wire.MySQL, "IS_USED_LOCK"
		}
		proxy, through := wire.Between(t, w.DSN, protocol)
		t.Cleanup(proxy.Cut)
		cut := newWorldAt(t, engines.Place{Engine: engine, DSN: through})
		l := new(logText)
		run(t, cut.heir(t, p, l))
		run(t, w.heir(t, p, new(logText)))
		producers := startFleet(t, plan{Base: w.Place, Role: roleProducer, Seed: newSeed(t), Work: workload{Pause: 20 * time.Millisecond}}, 2)
		looks, cuts := proxy.On(wire.Runs(look), wire.Pass, wire.Always), 0
		for i := range 2 {
			await(t, "the presence breaks and the relay begins anew", func() bool {
				if looks.Hits() > cuts+4 { // it is present, or tries to be
					cuts = looks.Hits()
					proxy.Cut()
				}
				return strings.Count(l.String(), "begins anew") > i
			})
		}
		producers.Stop()
		settled(t, patience, func() []string { return w.waiting(t) })
		v := judge(w.made(t), p.all())
		v.check(t, true)
		t.Log(v)
	})
}

// TestThroughAPoolerOnlyLeasesTell has two relays publish through PgBouncer for longer
// than a relay must be missing, while others use its connections. Neither shows that it
// is present, and neither has to begin anew.
func TestThroughAPoolerOnlyLeasesTell(t *testing.T) {
	t.Parallel()
	beside(t, 2, []string{pgTable, pgSQL}, func(t *testing.T, engine string) {
		w, p, l := newWorldOn(t, engine), newPress(t, 1), new(logText)
		pooled := newWorldAt(t, engines.Place{Engine: engine, DSN: throughPgBouncer(t, w.DSN)})
		for _, name := range []string{"first", "second"} {
			r := pooled.heir(t, p, l)
			r.Publisher = newCourier(p.url, name)
			run(t, r)
		}
		startFleet(t, plan{Base: pooled.Place, Role: roleProducer, Seed: newSeed(t), Work: workload{Pause: 20 * time.Millisecond}}, 2)
		n := 0
		for begun := time.Now(); p.relays() < 2 || time.Since(begun) < goneTime; n++ {
			p.await(t, pooled.putSome(t, fmt.Sprintf("a%d-", n), 10))
		}
		if text := l.String(); strings.Contains(text, "is gone") || strings.Contains(text, "begins anew") {
			t.Errorf("the log of relays that show no presence:\n%s", text)
		}
	})
}

// throughPgBouncer returns how a database is reached through the pooler.
func throughPgBouncer(t testing.TB, dsn string) string {
	t.Helper()
	direct, err := url.Parse(dsn)
	must(t, err)
	pooled, err := url.Parse(testenv.PgBouncer(t))
	must(t, err)
	direct.Host, direct.User = pooled.Host, pooled.User
	through, err := testenv.WithSettings(direct.String(), "default_query_exec_mode=exec")
	must(t, err)
	return through
}
