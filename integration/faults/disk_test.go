package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/internal/testenv"
)

var storing = &once.Operation[string]{Name: "storing"}

// disk is a small file system.
func disk(t *testing.T, megabytes int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "once-disk-") // not in t.TempDir, which the server's account may not enter
	must(t, err)
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	err = syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=1777", megabytes))
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("a disk that is full needs the right to mount a small one: %v", err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill fills a disk. The returned function makes room again.
func fill(t *testing.T, dir string) (makeRoom func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() { must(t, os.Remove(name)) }
}

// bulky is a table with large rows.
const bulky = "CREATE TABLE bulk (body %s NOT NULL)"

// store does a unit that writes a large row.
func store(ctx context.Context, d *engine.Database, id string) error {
	_, err := once.DoTx(ctx, d.Store, storing.For(id), func(ctx context.Context, tx engine.Tx) (string, error) {
		body := strings.Repeat("x", 60_000)
		return body[:1000], errors.Join(effect(ctx, tx, id), tx.Exec(ctx, "INSERT INTO bulk (body) VALUES ('"+body+"')"))
	})
	return err
}

// untilFull does units until one fails, and returns how many succeeded.
func untilFull(t *testing.T, d *engine.Database) (done int, err error) {
	t.Helper()
	for ; done < 5000; done++ {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		err = store(ctx, d, fmt.Sprint("unit ", done))
		cancel()
		if err != nil {
			return done, err
		}
	}
	t.Fatal("the disk is not full")
	return 0, nil
}

// survives fills the disk of a database with work. It checks that the unit that
// fails leaves nothing, that those before it stay, and that work continues when
// there is room again.
func survives(t *testing.T, d *engine.Database, complaints []string, makeRoom func() *engine.Database) {
	t.Helper()
	done, err := untilFull(t, d)
	clear := slices.ContainsFunc(complaints, func(text string) bool { return strings.Contains(err.Error(), text) })
	if _, again := once.MayRetry(err); done == 0 || !clear || !again {
		t.Errorf("after %d units: %v, may retry %v; want an error that says one of %q", done, err, again, complaints)
	}
	t.Logf("full after %d units: %v", done, err)
	failed := fmt.Sprint("unit ", done)
	for range 2 { // the disk is still full
		if err := store(t.Context(), d, failed); err == nil {
			t.Error("the unit that failed has found room")
		}
	}
	d = makeRoom()
	wantEffects(t, d, failed, 0)
	if rec, err := d.Store.Get(t.Context(), storing.For(failed).Key()); err != nil || rec.Status != once.Absent {
		t.Errorf("the unit that failed is %v, %v; want no trace of it", rec.Status, err)
	}
	for i := range done + 2 {
		must(t, store(t.Context(), d, fmt.Sprint("unit ", i)))
		wantEffects(t, d, fmt.Sprint("unit ", i), 1)
	}
	if n := d.MustNumber(t, "SELECT count(*) FROM bulk"); n != int64(done+2) {
		t.Errorf("%d rows of %d units", n, done+2)
	}
}

// TestSQLiteMayNotGrow needs no disk: it limits the size of the database file.
func TestSQLiteMayNotGrow(t *testing.T) {
	e := engine.All()[0]
	first, dsn := with(t, e)
	first.MustExec(t, fmt.Sprintf(bulky, "blob"))
	survives(t, e.Connect(t, dsn, "_pragma=max_page_count(60)"), []string{"full"}, func() *engine.Database { return first })
}

func TestSQLiteOnAFullDisk(t *testing.T) {
	e, dir := engine.All()[0], disk(t, 4)
	d := e.Connect(t, engine.SQLiteFile(filepath.Join(dir, "once.db")))
	must(t, d.Store.Migrate(t.Context()))
	d.MustExec(t, effectTable, fmt.Sprintf(bulky, "blob"))
	makeRoom := fillBut(t, dir, 600_000)
	survives(t, d, []string{"full"}, func() *engine.Database { makeRoom(); return d })
}

// fillBut fills a disk except for some bytes.
func fillBut(t *testing.T, dir string, free int) (makeRoom func()) {
	t.Helper()
	spare := filepath.Join(dir, "spare")
	must(t, os.WriteFile(spare, make([]byte, free), 0o600))
	makeRoom = fill(t, dir)
	must(t, os.Remove(spare))
	return makeRoom
}

// TestServerOnAFullDisk runs a server on a small disk. MariaDB may say that the
// table is full, or abort.
func TestServerOnAFullDisk(t *testing.T) {
	for _, c := range []struct {
		engine, kind, body string
		megabytes          int
		complaints         []string
	}{
		{engine.Postgres, "postgres", "text", 256, []string{"No space left"}},
		{engine.PGStore, "postgres", "text", 256, []string{"No space left"}},
		{engine.MariaDB, "mariadb", "longtext", 400, []string{"is full", "invalid connection"}},
	} {
		t.Run(c.engine, func(t *testing.T) {
			dir := disk(t, c.megabytes)
			t.Setenv("TMPDIR", dir) // the directory of a private server
			instance := private(t, c.kind)
			e, err := engine.Named(c.engine)
			must(t, err)
			d := e.Connect(t, instance.DSN())
			must(t, d.Store.Migrate(t.Context()))
			d.MustExec(t, effectTable, fmt.Sprintf(bulky, c.body))
			if c.kind == "postgres" {
				d.MustExec(t, "ALTER TABLE bulk ALTER COLUMN body SET STORAGE EXTERNAL") // it would compress well
			}
			makeRoom := fillBut(t, dir, 4<<20)
			survives(t, d, c.complaints, func() *engine.Database {
				makeRoom()
				if c.kind == "mariadb" {
					must(t, instance.Restart(t.Context()))
				}
				return d
			})
		})
	}
}
