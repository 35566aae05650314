//go:build linux

package crash

import (
	"path/filepath"
	"testing"

	"github.com/effectively-once/once/integration/faults/engine"
)

const sqliteSettings = "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"

// places returns n places on an engine: different files of SQLite, which has
// one writer at a time, or the same database.
func places(t *testing.T, name string, n int) []place {
	all := make([]place, n)
	dsn := ""
	switch name {
	case Postgres, PGStore, Parts:
		dsn = engine.Engine{Name: engine.Postgres}.FreshDatabase(t)
	case MariaDB:
		dsn = engine.Engine{Name: engine.MariaDB}.FreshDatabase(t)
	}
	for i := range all {
		all[i] = place{Engine: name, DSN: dsn}
		if name == SQLite {
			all[i].DSN = "file:" + filepath.Join(t.TempDir(), "once.db") + sqliteSettings
		}
	}
	return all
}
