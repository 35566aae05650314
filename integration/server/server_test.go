//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

func TestSetIsWhatTheEnvironmentSaysAndDurable(t *testing.T) {
	need(t, everyKind...)
	s, err := Start(t.Context(), everyKind...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, variable := range s.Env() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	if testenv.Postgres(t) != s.Postgres.DSN() || testenv.MariaDB(t) != s.MariaDB.DSN() ||
		testenv.PgBouncer(t) != s.PgBouncer.DSN() || testenv.RabbitMQ(t) != s.RabbitMQ.DSN() ||
		testenv.Redis(t) != s.Redis.DSN() {
		t.Errorf("the environment names other servers: %q", s.Env())
	}
	if os.Getenv(testenv.RequireVar) != "1" {
		t.Errorf("all servers run, but %s is not set", testenv.RequireVar)
	}
	postgres, pooled, maria := open(t, s.Postgres), open(t, s.PgBouncer), open(t, s.MariaDB)
	testenv.CheckPostgres(t, ask(postgres))
	testenv.CheckPostgres(t, ask(pooled))
	testenv.CheckMariaDB(t, ask(maria))
	testenv.CheckRabbitMQ(t, connect(t, s.RabbitMQ).Properties)
	redis := client(t, s.Redis)
	testenv.CheckRedis(t, redis.ConfigGet(t.Context(), "dir").Val())

	for query, want := range map[string]string{
		"SHOW fsync": "on", "SHOW synchronous_commit": "on", "SHOW full_page_writes": "on", "SHOW wal_level": "logical",
		"SHOW max_connections": "500", "SHOW max_prepared_transactions": "10", "SHOW server_encoding": "UTF8",
	} {
		if got := mustAsk(t, postgres, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for query, want := range map[string]string{
		"SELECT @@innodb_flush_log_at_trx_commit": "1", "SELECT @@sync_binlog": "1", "SELECT @@innodb_doublewrite": "1",
		"SELECT @@skip_name_resolve": "1", "SELECT @@character_set_server": "utf8mb4", "SELECT DATABASE()": "once",
	} {
		if got := mustAsk(t, maria, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for setting, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory": "0", "maxmemory-policy": "noeviction",
		"protected-mode": "yes",
	} {
		if got, err := redis.ConfigGet(t.Context(), setting).Result(); err != nil || got[setting] != want {
			t.Errorf("%s: %q (%v), want %q", setting, got, err, want)
		}
	}
	for _, i := range s.byDefault() {
		mustBePrivate(t, i)
	}
	mustPoolTransactions(t, s.PgBouncer)
}

// mustBePrivate checks that the server listens only on loopback, does not run
// as root, and requires a password.
func mustBePrivate(t *testing.T, i *Instance) {
	t.Helper()
	k := i.engine.kind()
	for _, local := range listeners(t, i.port) {
		if local != "0100007F" { // 127.0.0.1 in /proc on a little-endian machine
			t.Errorf("%s listens on %s", k, local)
		}
	}
	for _, member := range members(t, i.process.cmd.Process.Pid) {
		info, err := os.Stat(fmt.Sprintf("/proc/%d", member.pid))
		if err != nil {
			t.Fatal(err)
		}
		if info.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Errorf("process %d of %s runs as root", member.pid, k)
		}
	}
	if _, err := i.engine.askIdentity(t.Context(), guess(i)); err == nil {
		t.Errorf("%s lets in who does not know the password", k)
	}
}

// guess returns the DSN of an attacker who knows the port and tries the usual
// account.
func guess(i *Instance) string {
	switch i.engine.kind() {
	case MariaDB:
		return fmt.Sprintf("root@tcp(%s)/", i.Addr())
	case RabbitMQ:
		return fmt.Sprintf("amqp://guest:guest@%s/", i.Addr())
	case Redis:
		return fmt.Sprintf("redis://%s/0", i.Addr())
	default:
		return postgresURL("postgres", i.port)
	}
}

func listeners(t *testing.T, port int) (addresses []string) {
	t.Helper()
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			address, hex, _ := strings.Cut(fields[1], ":")
			if fields[3] == "0A" && hex == fmt.Sprintf("%04X", port) {
				addresses = append(addresses, address)
			}
		}
	}
	if len(addresses) == 0 {
		t.Errorf("nobody listens on port %d: the test reads the wrong place", port)
	}
	return addresses
}

// mustPoolTransactions checks that two clients outside transactions share one
// server connection, as they would not in session mode.
func mustPoolTransactions(t *testing.T, i *Instance) {
	t.Helper()
	first, second := open(t, i), open(t, i)
	if a, b := mustAsk(t, first, "SELECT pg_backend_pid()"), mustAsk(t, second, "SELECT pg_backend_pid()"); a != b {
		t.Errorf("two idle clients hold servers %s and %s of their own: that is not transaction mode", a, b)
	}
}

func TestKillAndRestartKeepWhatWasCommitted(t *testing.T) {
	for _, k := range []Kind{Postgres, MariaDB} {
		t.Run(string(k), func(t *testing.T) {
			need(t, k)
			i := started(t)(starter(k)(t.Context()))
			address, dir := i.Addr(), i.Identity()
			db := open(t, i)
			mustExec(t, db, "CREATE TABLE kept (n int)")
			mustExec(t, db, "INSERT INTO kept VALUES (1)")
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			mustExec(t, tx, "INSERT INTO kept VALUES (2)")

			all := members(t, i.process.cmd.Process.Pid)
			if err := i.Kill(); err != nil {
				t.Fatal(err)
			}
			if anyLives(all) {
				t.Errorf("after Kill, some of %v live", all)
			}
			if err := tx.Commit(); err == nil {
				t.Error("a killed server has acknowledged a commit")
			}
			if err := i.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i.Addr() != address || i.Identity() != dir {
				t.Errorf("restarted as %s on %s, was %s on %s", i.Addr(), i.Identity(), address, dir)
			}
			if got := mustAsk(t, open(t, i), "SELECT sum(n) FROM kept"); got != "1" {
				t.Errorf("the sum of committed rows is %s, want 1", got)
			}
			if err := i.Restart(t.Context()); err != nil { // a clean restart this time
				t.Fatal(err)
			}
			if got := mustAsk(t, open(t, i), "SELECT sum(n) FROM kept"); got != "1" {
				t.Errorf("after an orderly restart the sum is %s, want 1", got)
			}
		})
	}
}

// A server that is killed as it begins, because another has taken its port, may
// have made its lock file and not written it.
func TestAnEmptyLockFileIsNotInTheWay(t *testing.T) {
	need(t, Postgres)
	i := started(t)(StartPostgres(t.Context()))
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(i.home.path("data/postmaster.pid"), 0); err != nil {
		t.Fatal(err)
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestPgBouncerFindsARestartedPostgres(t *testing.T) {
	need(t, Postgres, PgBouncer)
	postgres := started(t)(StartPostgres(t.Context()))
	bouncer := started(t)(StartPgBouncer(t.Context(), postgres))
	if err := errors.Join(postgres.Kill(), postgres.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	db := open(t, bouncer)
	testenv.Await(t, "PgBouncer answers again", func() bool {
		_, err := ask(db)("SELECT 1")
		return err == nil
	})
	if err := errors.Join(bouncer.Kill(), bouncer.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := StartPgBouncer(t.Context(), bouncer); err == nil {
		t.Error("a PgBouncer was started in front of a PgBouncer")
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	for _, k := range []Kind{Postgres, MariaDB} {
		t.Run(string(k), func(t *testing.T) {
			need(t, k)
			i := started(t)(starter(k)(t.Context()))
			db := open(t, i)
			mustAsk(t, db, "SELECT 1")
			if err := errors.Join(i.Pause(), i.Pause()); err != nil {
				t.Fatal(err)
			}
			for _, member := range members(t, i.process.cmd.Process.Pid) {
				if !member.stopped() {
					t.Errorf("process %d is in state %s", member.pid, member.state)
				}
			}
			soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := db.PingContext(soon); err == nil {
				t.Error("a paused server has answered")
			}
			if err := errors.Join(i.Resume(), i.Resume()); err != nil {
				t.Fatal(err)
			}
			mustAsk(t, db, "SELECT 1")

			if err := errors.Join(i.Pause(), i.Kill()); err != nil {
				t.Fatal(err)
			}
			if err := i.Pause(); err == nil {
				t.Error("a killed server was paused")
			}
			if err := errors.Join(i.Restart(t.Context()), i.Pause()); err != nil { // stopped while paused
				t.Fatal(err)
			}
		})
	}
}

func TestStopLeavesNothing(t *testing.T) {
	need(t, everyKind...)
	s, err := Start(t.Context(), everyKind...)
	if err != nil {
		t.Fatal(err)
	}
	instances := s.byDefault()
	var all []status
	for _, i := range instances {
		all = append(all, members(t, i.process.cmd.Process.Pid)...)
	}
	if err := errors.Join(s.Stop(), s.Stop()); err != nil {
		t.Fatal(err)
	}
	// Helpers of RabbitMQ end when they find their pipe closed, a moment later.
	testenv.Await(t, fmt.Sprintf("after Stop, none of %v lives", all), func() bool { return !anyLives(all) })
	for _, i := range instances {
		if _, err := os.Stat(i.home.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after Stop, %s is there: %v", i.home.dir, err)
		}
		if portTaken(i.port) {
			t.Errorf("after Stop, port %d is taken", i.port)
		}
	}
}

func TestServerThatEndsByItselfIsReported(t *testing.T) {
	need(t, Postgres)
	i, err := StartPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := i.process.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-i.process.done
	if err := i.Stop(); err == nil || !strings.Contains(err.Error(), "immediate shutdown") {
		t.Errorf("%v, want an error with the end of the log", err)
	}
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	need(t, Postgres, MariaDB, RabbitMQ, Redis)
	for k, limit := range map[Kind]time.Duration{
		Postgres: 300 * time.Millisecond, MariaDB: 300 * time.Millisecond, RabbitMQ: 300 * time.Millisecond,
		Redis: 0, // it starts within milliseconds
	} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		if i, err := starter(k)(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, %v: want that the time was too short", k, i, err)
		}
		cancel()
	}
	e, err := newPostgres()
	if err != nil {
		t.Fatal(err)
	}
	e.password = ""
	if _, err := start(t.Context(), e, FreePort); err == nil || !strings.Contains(err.Error(), "password file") {
		t.Errorf("%v, want what initdb says", err)
	}
}

func TestTakenPortIsLeftToItsOwner(t *testing.T) {
	need(t, everyKind...)
	owner := started(t)(StartPostgres(t.Context()))
	twin := *owner.engine.(*postgres)
	redisOwner := started(t)(StartRedis(t.Context()))
	redisTwin := *redisOwner.engine.(*redisEngine)
	stranger, err := newPostgres()
	if err != nil {
		t.Fatal(err)
	}
	maria, err := newMariaDB()
	if err != nil {
		t.Fatal(err)
	}
	bouncer, err := newPgBouncer(owner)
	if err != nil {
		t.Fatal(err)
	}
	rabbit, err := newRabbitMQ(nil)
	if err != nil {
		t.Fatal(err)
	}
	redis, err := newRedis()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		engine
		taken int
	}{
		{stranger, occupy(t)}, {maria, occupy(t)}, {bouncer, occupy(t)}, {rabbit, occupy(t)}, {redis, occupy(t)},
		{&twin, owner.port}, {&redisTwin, redisOwner.port}, // other servers that let us in and answer
	} {
		offered := 0
		i, err := start(t.Context(), c.engine, func() (int, error) {
			offered++
			if offered == 1 {
				return c.taken, nil
			}
			return FreePort()
		})
		started(t)(i, err)
		if i.port == c.taken || offered != 2 {
			t.Errorf("%s is on port %d after %d offers, the first of which, %d, was taken", c.kind(), i.port, offered, c.taken)
		}
	}
}

// occupy listens on a port and closes every connection.
func occupy(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestSweepRemovesOnlyWhatNobodyHolds(t *testing.T) {
	parent := t.TempDir()
	dir := func(name string, lock bool) string {
		path := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Join(path, "data", "base"), 0o700); err != nil {
			t.Fatal(err)
		}
		if lock {
			if err := os.WriteFile(filepath.Join(path, lockName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	abandoned, held := dir(homePrefix+"postgres1", true), dir(homePrefix+"postgres2", true)
	unmarked, other := dir(homePrefix+"postgres3", false), dir("other", true)
	lock, err := os.Open(filepath.Join(held, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if free, err := tryLock(lock); err != nil || !free {
		t.Fatal(free, err)
	}
	if err := sweep(parent); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{abandoned: false, held: true, unmarked: true, other: true} {
		if _, err := os.Stat(filepath.Join(path, "data", "base")); (err == nil) != want {
			t.Errorf("after the sweep %s is there: %v, want %v", path, err == nil, want)
		}
	}
}
