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

// failsClosed checks that every call fails in time, that none runs its work, and that calling again makes sense.
func failsClosed(t *testing.T, what string, d *engine.Database, id string) {
	t.Helper()
	const patience = 500 * time.Millisecond
	for how, call := range calls(d, unreachable, id, never(t, what)) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begun := time.Now()
		_, err := call(ctx)
		cancel()
		if took := time.Since(begun); took > patience+3*time.Second { // Do tries for a second to give back what it may have claimed
			t.Errorf("%s: %s took %v", what, how, took)
		}
		if _, again := once.MayRetry(err); err == nil || !again {
			t.Errorf("%s: %s returned %v, may retry %v", what, how, err, again)
		}
	}
}

// worksOnce does a unit, and finds it done after that.
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

// TestServerDown kills the server under programs that are connected and one that is just being started.
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

// private is a server of this test's own, in a process and directory that end with it.
func private(t *testing.T, kind string) *server.Instance {
	t.Helper()
	start := server.StartPostgres
	if kind == "mariadb" {
		start = server.StartMariaDB
		testenv.MariaDB(t) // skips, or fails, as every test that needs one
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

// TestReadOnly has a database that answers and takes nothing: a standby, or one that was set so.
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
