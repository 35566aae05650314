package faults

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

var unreachable = &once.Operation[string]{Name: "unreachable", OnUnknown: once.Resend}

// failsClosed checks that each call fails in time, that none runs its work, and
// that each error says to retry.
func failsClosed(t *testing.T, what string, d *engine.Database, id string) {
	t.Helper()
	const patience = 500 * time.Millisecond
	for how, call := range calls(d, unreachable, id, never(t, what)) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begun := time.Now()
		_, err := call(ctx)
		cancel()
		if took := time.Since(begun); took > patience+3*time.Second { // Do tries for a second to release what it may have claimed
			t.Errorf("%s: %s took %v", what, how, took)
		}
		if _, again := once.MayRetry(err); err == nil || !again {
			t.Errorf("%s: %s returned %v, may retry %v", what, how, err, again)
		}
	}
}

// worksOnce does a unit twice, and checks that the work runs once.
func worksOnce(t *testing.T, d *engine.Database, id string) {
	t.Helper()
	wantEffects(t, d, ranIn(id), 0)
	for range 2 {
		_, err := once.DoTx(t.Context(), d.Store, unreachable.For(id), func(ctx context.Context, tx engine.Tx) (string, error) {
			return "answer", effect(ctx, tx, id)
		})
		must(t, err)
	}
	wantEffects(t, d, id, 1)
}

// TestServerDown kills the server of programs that are connected, and of one
// that is starting.
func TestServerDown(t *testing.T) {
	for kind, engines := range map[string][]string{"postgres": postgres, "mariadb": {engine.MariaDB}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			instance := private(t, kind)
			connected := map[string]*engine.Database{}
			for _, name := range engines {
				e, err := engine.Named(name)
				must(t, err)
				d := e.Connect(t, instance.DSN())
				must(t, d.Store.Migrate(t.Context()))
				connected[name] = d
			}
			connected[engines[0]].MustExec(t, effectTable)
			for name, d := range connected {
				worksOnce(t, d, name+" before")
			}
			must(t, instance.Kill())
			for name, d := range connected {
				failsClosed(t, name+" is down", d, name+" meanwhile")
				failsClosed(t, name+" is down, and it is done already", d, name+" before")
				e, err := engine.Named(name)
				must(t, err)
				failsClosed(t, name+" was never reached", e.Connect(t, instance.DSN()), name+" meanwhile")
			}
			must(t, instance.Restart(t.Context()))
			for name, d := range connected {
				worksOnce(t, d, name+" before")
				worksOnce(t, d, name+" meanwhile")
			}
		})
	}
}

// private starts a server for this test, in its own process and directory.
func private(t *testing.T, kind string) *server.Instance {
	t.Helper()
	start := server.StartPostgres
	if kind == "mariadb" {
		start = server.StartMariaDB
		testenv.MariaDB(t) // skips or fails like each test that needs one
	} else {
		testenv.Postgres(t)
	}
	instance, err := start(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := instance.Stop(); err != nil {
			t.Errorf("stop %s: %v", kind, err)
		}
	})
	return instance
}

// TestReadOnly has a read-only database: a standby, or one that was set so.
func TestReadOnly(t *testing.T) {
	settings := map[string]string{engine.Postgres: "default_transaction_read_only=on", engine.PGStore: "default_transaction_read_only=on",
		engine.MariaDB: "tx_read_only=1", engine.SQLite: "_pragma=query_only(1)"}
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, dsn := with(t, e)
		worksOnce(t, d, "before")
		failsClosed(t, "read only", e.Connect(t, dsn, settings[e.Name]), "meanwhile")
		worksOnce(t, d, "meanwhile")
	})
}

// TestNoSuchFile has a SQLite database that cannot be opened.
func TestNoSuchFile(t *testing.T) {
	d := engine.All()[0].Connect(t, engine.SQLiteFile(filepath.Join(t.TempDir(), "missing", "once.db")))
	failsClosed(t, "no such file", d, "meanwhile")
}
