package crash

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

const (
	childVar = "ONCE_CRASH_CHILD" // engine, space, DSN: this process is a child
	soakVar  = "ONCE_SOAK"        // a duration: kill for that long on each engine, instead of a few times
	children = 2
	keys     = 12 // worked at the same time; when all are done, the next ones are taken
	kills    = 20
)

func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(childVar); ok {
		engine, dsn, _ := strings.Cut(spec, " ")
		if err := child(engine, dsn, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child works the ids that it reads, and says which are done. It ends when its parent does.
func child(engine, dsn string, in io.Reader, out io.Writer) error {
	w, err := engines[engine](dsn)
	if err != nil {
		return err
	}
	defer w.close()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := finish(context.Background(), w, lines.Text()); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Fprintln(out, lines.Text())
	}
	return nil
}

func TestCrash(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "once.db")
		run(t, "sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	})
	for _, engine := range []string{"postgres", "postgres-pgstore"} {
		t.Run(engine, func(t *testing.T) { run(t, engine, postgresDatabase(t)) })
	}
	t.Run("mariadb", func(t *testing.T) { run(t, "mariadb", mariaDatabase(t)) })
}

// run kills until it is enough, and counts.
func run(t *testing.T, engine, dsn string) {
	w, err := engines[engine](dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+soak(t))
	defer cancel()
	if err := w.setUp(ctx); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	chance := rand.New(rand.NewPCG(seed, 0))
	killed, worked, begun := 0, 0, time.Now()
	enough := func() bool {
		if soak(t) > 0 {
			return time.Since(begun) > soak(t)
		}
		return killed >= kills
	}
	for round := 0; !enough() && !t.Failed(); round++ {
		ids := make([]string, keys)
		for i := range ids {
			ids[i] = fmt.Sprintf("%d-%d", round, i)
		}
		killed += killRound(t, ctx, engine, dsn, ids, chance)
		for _, id := range ids {
			if err := finish(ctx, w, id); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, id, err)
			}
			for _, table := range tables {
				if n, err := w.count(ctx, table, id); err != nil || n != 1 {
					t.Errorf("seed %d: %s happened %d times %s (%v)", seed, id, n, table, err)
				}
			}
			worked++
		}
	}
	t.Logf("seed %d: %d kills, %d units of work, %d effects each exactly once, in %v",
		seed, killed, worked, worked*len(tables), time.Since(begun).Round(time.Millisecond))
}

// killRound lets children race through ids, and kills some of them on the way. It reports how many.
func killRound(t *testing.T, ctx context.Context, engine, dsn string, ids []string, chance *rand.Rand) int {
	var wg sync.WaitGroup
	killed := make([]int, children)
	for c := range children {
		order := chance.Perm(len(ids))
		delays := make([]time.Duration, 3)
		for i := range delays {
			delays[i] = time.Duration(chance.IntN(40_000)) * time.Microsecond
		}
		wg.Go(func() {
			for _, delay := range delays {
				if killOne(t, ctx, engine, dsn, ids, order, delay) {
					killed[c]++
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range killed {
		sum += n
	}
	return sum
}

// killOne starts a child, lets it finish one id so that it is known to work, and kills it a moment later.
func killOne(t *testing.T, ctx context.Context, engine, dsn string, ids []string, order []int, delay time.Duration) bool {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+engine+" "+dsn)
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer in.Close()
		lines := bufio.NewScanner(out)
		for _, i := range order {
			if _, err := fmt.Fprintln(in, ids[i]); err != nil {
				return // it was killed
			}
			if !lines.Scan() {
				return
			}
			if i == order[0] {
				timer.Reset(delay)
			}
		}
	}()
	select {
	case <-timer.C:
		_ = cmd.Process.Kill()
	case <-done:
	}
	<-done
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		t.Errorf("a child failed: %v", err)
	}
	return errors.As(err, &exit) && !exit.Exited()
}

func soak(t *testing.T) time.Duration {
	text := os.Getenv(soakVar)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", soakVar, err)
	}
	return d
}

// postgresDatabase makes a database of its own on the server that was started for tests.
func postgresDatabase(t *testing.T) string {
	dsn := testenv.Postgres(t)
	db := open(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(db))
	name := fmt.Sprintf("crash_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+name+" WITH (FORCE)") })
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	return address.String()
}

func mariaDatabase(t *testing.T) string {
	dsn := testenv.MariaDB(t)
	db := open(t, "mysql", dsn)
	testenv.CheckMariaDB(t, asker(db))
	name := fmt.Sprintf("crash_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+name) })
	return dsn[:strings.LastIndex(dsn, "/")+1] + name
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}
