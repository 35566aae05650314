package target

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/secret/secrettest"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

func TestExpand(t *testing.T) {
	t.Setenv("PW", "p@ss:w/ord %")
	t.Setenv("HOST", "db.internal:5432")
	t.Setenv("URL", "postgres://u:p%40@h/d")
	for from, want := range map[string]string{
		"postgres://app:${PW}@${HOST}/d":  "postgres://app:p%40ss%3Aw%2Ford%20%25@db.internal:5432/d",
		"postgres://${HOST}/d?prefix=${}": "",
		"postgres://${MISSING}/d":         "",
		"${URL}":                          "postgres://u:p%40@h/d",
		"sqlite:/a/b.db?x=1@2":            "sqlite:/a/b.db?x=1@2",
		"postgres://u:p$@h/d":             "postgres://u:p$@h/d",
	} {
		got, err := Expand(from)
		if got != want && want != "" || (err != nil) != (want == "") || err != nil && !errors.Is(err, ErrURL) {
			t.Errorf("Expand(%q) is %q and %v, want %q", from, got, err, want)
		}
	}
}

func TestNothingShowsAPassword(t *testing.T) {
	t.Setenv("SECRET", "hunter2")
	t.Setenv("PAIR", "u:hunter2")
	for _, from := range []string{
		"postgres://u:hunter2@h/d?sslpassword=hunter2", "postgres://u:hunter2@${HOST}/d", "mysql://u:hunter2@h/d",
		"postgres://${HOST}/d?x=1&password=hunter2", "postgres://h/d?password=hunter2#x",
		"postgres://u:hun/ter2hunter2@h/d", "postgres://u:%zzhunter2@h/d", "oracle://u:hunter2@h/d",
		"postgres://u:1/hunter2@h/d", "postgres://u:#hunter2@h/d", "mysql://u:1?hunter2@h/d", "postgres://u/hunter2@h/d",
		"postgres://h/d?pass%77ord=hunter2", "postgres://h/d?ssl%50assword=hunter2", "postgres://${PAIR}@h/d",
		"postgres://u:${SECRET}@h:x/d", "mysql://u:hunter2@/d", "postgres://u:hunter2@h/d?sslmode=odd", "${SECRET}",
	} {
		printed, err := Redact(from)
		if strings.Contains(printed, "hunter2") || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Redact(%q): %q %v", from, printed, err)
		}
		opened, err := Open(t.Context(), from, nil)
		switch {
		case err == nil:
			if strings.Contains(opened.String(), "hunter2") {
				t.Errorf("Open(%q) prints %q", from, opened)
			}
			opened.Close()
		case strings.Contains(err.Error(), "hunter2"):
			t.Errorf("Open(%q): %v", from, err)
		}
	}
}

func TestRedact(t *testing.T) {
	for from, want := range map[string]string{
		"postgres://u:${PW}@h/d":      "postgres://u:${PW}@h/d",
		"postgres://u:x${PW}@h/d":     "postgres://u:xxxxx@h/d",
		"postgres://u:p@h/d?prefix=a": "postgres://u:xxxxx@h/d?prefix=a",
		"postgres://${H}/d?a=1&sslmode=require&sslpassword=x&password=${P}": "postgres://${H}/d?a=xxxxx&sslmode=require&sslpassword=xxxxx&password=${P}",
		"sqlite:/a/b.db": "sqlite:/a/b.db",
		"${URL}":         "${URL}",
	} {
		if got, err := Redact(from); got != want || err != nil {
			t.Errorf("Redact(%q) is %q and %v, want %q", from, got, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for from, want := range map[string]string{
		"":                                   "must begin with",
		"shop.db":                            "must begin with",
		"sqlite:":                            "has no file",
		"sqlite://shop.db":                   "has a host",
		"sqlite:/nowhere/at/all.db":          "there is no file",
		"sqlite:x.db?schema=a":               "schema is not for sqlite",
		"mysql://u@h":                        "has no database",
		"mysql://u@/d":                       "neither a host nor a socket",
		"mysql://u@h/d?outbox=table":         "outbox is not for mysql",
		"postgres://h/d?outbox=log":          "use table, rows-by-log or log-only",
		"postgres://h/d?partition=soon":      "give a duration",
		"postgres://h/d?prefix=a-b":          "is not made of letters",
		"postgres://h/d?sslmode=unheard-of":  "sslmode",
		"postgres://h/d?prefix=%zz":          "after the ?",
		"mysql://u@h/d?readTimeout=whenever": "whenever",
	} {
		opened, err := Open(t.Context(), from, nil)
		if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q): %v, want %q", from, err, want)
		}
		if err == nil {
			opened.Close()
		}
	}
}

func TestSQLite(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(filepath.Join(t.TempDir(), "a shop%3F.db")) + "?prefix=shop_"
	opened, err := Open(t.Context(), from, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	before, err := opened.Tables.Schema(t.Context())
	if err != nil || before.Version != 0 || before.Misfit == nil {
		t.Errorf("before Migrate: %+v %v", before, err)
	}
	if err := opened.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := opened.Tables.Schema(t.Context())
	if err != nil || after.Misfit != nil || after.Version != after.Latest || len(after.Applied) != after.Latest {
		t.Errorf("after Migrate: %+v %v", after, err)
	}
	if text, err := opened.Tables.SQL(0); err != nil || !strings.Contains(text, "shop_record") {
		t.Errorf("SQL: %v in %q", err, text)
	}
	if _, err := opened.Store.Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); err != nil {
		t.Error(err)
	}
	if _, err := need[store.Relayable](opened).LeaseLanes(t.Context(), [16]byte{7, 15: 9}, time.Hour, []int{3}); err != nil {
		t.Fatal(err)
	}
	leases, err := opened.Tables.Leases(t.Context())
	if err != nil || leases.Relays != 1 || leases.Lanes[3].Relay != [16]byte{7, 15: 9} || leases.Lanes[3].Left <= 0 {
		t.Errorf("leases are %+v %v", leases, err)
	}
	again, err := Open(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := again.Tables.Schema(t.Context()); err != nil || got.Version != got.Latest {
		t.Errorf("opened again: %+v %v", got, err)
	}
}

// What is wrong in one part of a URL never shows the secret in another, whichever part and whichever driver it is.
func TestBrokenURLShowsNoSecret(t *testing.T) {
	ends, cancel := context.WithCancel(t.Context())
	cancel() // nothing is waited for: what parses is not reached
	for _, from := range []string{
		"postgres://u:" + secrettest.Secret + "@127.0.0.1:1/d?sslmode=disable",
		"postgres://127.0.0.1:1/d?user=u&password=" + secrettest.Secret + "&sslmode=disable",
		"postgres://u@127.0.0.1:1/d?sslmode=disable&sslpassword=" + secrettest.Secret,
		"postgres://u@127.0.0.1:1/d?pool_max_conns=2&password=" + secrettest.Secret,
		"mysql://u:" + secrettest.Secret + "@127.0.0.1:1/d?tls=false",
		"mysql://u@127.0.0.1:1/d?password=" + secrettest.Secret + "&readTimeout=1s",
		"sqlite:/nowhere/a.db?_pragma=busy_timeout(1)&password=" + secrettest.Secret + "&mode=ro",
		"host=127.0.0.1 user=u password=" + secrettest.Secret + " port=1",
		"u:" + secrettest.Secret + "@tcp(127.0.0.1:1)/d",
	} {
		secrettest.Broken(t, from, func(broken string) (said string) {
			ctx, _ := secret.With(ends)
			printed, err := Redact(broken)
			said = printed + secrettest.Said(t.Context(), err)
			opened, err := Open(ctx, broken, nil)
			if said += " " + secrettest.Said(t.Context(), err); err != nil {
				return said
			}
			defer opened.Close()
			_, err = opened.Tables.Schema(ctx)
			return said + " " + opened.String() + " " + secrettest.Said(ctx, err)
		})
	}
}

// So is a new file that a link leads to, also where a process makes files for everybody.
func TestNewSQLiteFilesBehindLinksArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are those of Unix")
	}
	defer openUmask()()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "real", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"dir": filepath.Join("real", "deep"), "first": filepath.Join("dir", "second"),
		filepath.Join("real", "deep", "second"): filepath.Join("..", "shop.db")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := Open(t.Context(), "sqlite:"+filepath.Join(dir, "first")+"?_pragma=journal_mode(WAL)", &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := opened.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "real", "shop.db*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("there are %q, %v, want the database with its -wal and -shm", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v %v, want 0600", file, info.Mode(), err)
		}
	}
}

// What a new database has in it is for its owner alone, and so are the files beside it. A mode that was chosen stays.
func TestNewSQLiteFilesArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are those of Unix")
	}
	for mode, journal := range map[string]string{"WAL": "-wal -shm", "DELETE": "-journal"} {
		for _, before := range []fs.FileMode{0, 0o640} {
			path := filepath.Join(t.TempDir(), "shop.db")
			want := fs.FileMode(0o600)
			if before != 0 {
				want = before
				if err := os.WriteFile(path, nil, before); err != nil {
					t.Fatal(err)
				}
			}
			opened, err := Open(t.Context(), "sqlite:"+path+"?_pragma=journal_mode("+mode+")", &Options{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := opened.Tables.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			tx, err := opened.Tables.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("CREATE TABLE paid (id TEXT)"); err != nil {
				t.Fatal(err)
			}
			for _, end := range append(strings.Fields(journal), "") {
				info, err := os.Stat(path + end)
				if err != nil || info.Mode().Perm() != want {
					t.Errorf("%s with mode %v before: shop.db%s is %v %v, want %v", mode, before, end, info.Mode(), err, want)
				}
			}
			if err := errors.Join(tx.Rollback(), opened.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDriversReadParametersAsTheyAreWritten(t *testing.T) {
	for written, want := range map[string]string{
		"a%20b": "a b",
		"a+b":   "a+b",
		"a%2Bb": "a+b",
	} {
		u, err := parse("postgres://localhost/shop?prefix=shop_&application_name=" + written)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := takeOwn(u); err != nil {
			t.Fatal(err)
		}
		config, err := pgx.ParseConfig(u.String())
		if err != nil {
			t.Fatal(err)
		}
		if got := config.RuntimeParams["application_name"]; got != want {
			t.Errorf("%s: the driver reads %q, want %q", written, got, want)
		}
	}
}

func need[Capability any](t *Target) Capability {
	c, err := Need[Capability](t, "such thing")
	if err != nil {
		panic(err)
	}
	return c
}
