package sqlstore_test

import (
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// appears returns a presence, or nil. It ends with the test.
func appears(t *testing.T, s *sqlstore.Store) store.Present {
	t.Helper()
	p, err := s.AppearRelay(t.Context())
	must(t, err)
	if p != nil {
		t.Cleanup(p.Close)
	}
	return p
}

// fileOf returns the name of the file that relays lock.
func fileOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var file string
	must(t, db.QueryRow("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file))
	return file + "-relays"
}

// Others could not see the lock of a file that was replaced, so it ends the presence.
func TestAPresenceEndsWithItsFile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("relays lock files on Linux only")
	}
	for name, spoil := range map[string]func(string) error{
		"removed":  os.Remove,
		"replaced": func(file string) error { return os.Rename(emptyFile(t), file) },
	} {
		db := freshSQLite(t)(t)
		s := sqlstore.New(db, sqlstore.SQLite, nil)
		must(t, s.Migrate(t.Context()))
		p := appears(t, s)
		_, err := p.Look(t.Context(), nil)
		must(t, err)
		must(t, spoil(fileOf(t, db)))
		if _, err := p.Look(t.Context(), nil); err == nil {
			t.Errorf("%s: the relay looked, and is still present", name)
		}
		after := appears(t, s)
		missing, err := after.Look(t.Context(), [][16]byte{p.ID()})
		must(t, err)
		if len(missing) > 0 {
			t.Errorf("%s: a relay is missing whose lock is in another file", name)
		}
	}
}

func emptyFile(t *testing.T) string {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	must(t, f.Close())
	return f.Name()
}

func TestNoRelayAppearsInMemory(t *testing.T) {
	db := open(t, "sqlite", "file::memory:")
	db.SetMaxOpenConns(1)
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	if p := appears(t, s); p != nil {
		t.Errorf("a relay appeared in a database that no other process sees: %x", p.ID())
	}
}

// Relays must not use up the connections of a pool.
func TestRelaysLeaveConnections(t *testing.T) {
	db := freshMariaDB(t)(t)
	db.SetMaxOpenConns(9)
	first, second := sqlstore.New(db, sqlstore.MySQL, nil), sqlstore.New(db, sqlstore.MySQL, nil)
	must(t, first.Migrate(t.Context()))
	p := appears(t, first)
	if p == nil || appears(t, second) == nil {
		t.Fatal("two relays do not appear in a pool of 9 connections")
	}
	if appears(t, second) != nil {
		t.Error("a third relay appeared in a pool of 9 connections")
	}
	p.Close()
	p.Close()
	if appears(t, second) == nil {
		t.Error("no relay appears after another has left")
	}
	if appears(t, first) != nil {
		t.Error("a relay that left twice made room for two others")
	}
}

// The lock of a relay ends when its connection is closed by the server, and the
// relay learns of it.
func TestAPresenceEndsWithItsConnection(t *testing.T) {
	db := freshMariaDB(t)(t)
	s := sqlstore.New(db, sqlstore.MySQL, nil)
	must(t, s.Migrate(t.Context()))
	p, other := appears(t, s), appears(t, s)
	var connection int64
	must(t, db.QueryRow("SELECT IS_USED_LOCK(CONCAT('once-relay-', LOWER(HEX(?))))", idBytes(p)).Scan(&connection))
	mustExec(t, db, fmt.Sprint("KILL ", connection))
	if _, err := p.Look(t.Context(), nil); err == nil {
		t.Error("the relay looked on a connection that the server has closed")
	}
	proof.Await(t, "the relay is missing", func() bool { // KILL does not wait for the lock to end
		missing, err := other.Look(t.Context(), [][16]byte{p.ID()})
		must(t, err)
		return len(missing) == 1
	})
}

func idBytes(p store.Present) []byte {
	id := p.ID()
	return id[:]
}
