//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/jackc/pgx/v5"
)

// postgresSettings are in the configuration file and not on the command line,
// so that a test can change them with ALTER SYSTEM. fsync is on by default; it
// is listed because everything depends on it.
const postgresSettings = `
listen_addresses = '127.0.0.1'
unix_socket_directories = '%s'
fsync = on
synchronous_commit = on
wal_level = logical
max_connections = 500
max_prepared_transactions = 10
max_wal_senders = 10
max_replication_slots = 10
shared_buffers = 64MB
`

type postgres struct {
	bin      string
	password string
}

func newPostgres() (*postgres, error) {
	bin, err := postgresBin()
	if err == nil && os.Getenv(testenv.PostgresVersionVar) != "" {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		bin, err = otherPostgres(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &postgres{bin: bin, password: rand.Text()}, nil
}

func (*postgres) kind() Kind { return Postgres }

func (*postgres) account() string { return "postgres" }

func (e *postgres) prepare(ctx context.Context, h *home) error {
	if err := h.write("password", e.password); err != nil {
		return err
	}
	// Over loopback MD5 is enough, and saves 4096 rounds of hashing per
	// connection, which SCRAM takes of the client, and a password in clear text
	// of the server. The empty cluster is not synced: it is created anew if the
	// machine stops.
	err := h.run(ctx, filepath.Join(e.bin, "initdb"), "--pgdata="+e.dataDir(h), "--username=postgres",
		"--auth=md5", "--pwfile="+h.path("password"), "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
	if err != nil {
		return err
	}
	return e.configure(h)
}

func (e *postgres) configure(h *home) error {
	f, err := os.OpenFile(filepath.Join(e.dataDir(h), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, postgresSettings, strings.ReplaceAll(h.dir, "'", "''"))
	return err
}

// launch makes the kernel send SIGQUIT when we die, so that the server ends its
// children as well.
func (e *postgres) launch(h *home, port int) (*process, error) {
	// A server that was killed just after its start may leave an empty lock
	// file, which the next one refuses. No other server has this directory.
	lock := filepath.Join(e.dataDir(h), "postmaster.pid")
	if found, err := os.Stat(lock); err == nil && found.Size() == 0 {
		if err := os.Remove(lock); err != nil {
			return nil, err
		}
	}
	return h.launch(syscall.SIGQUIT, filepath.Join(e.bin, "postgres"), "-D", e.dataDir(h), "-p", strconv.Itoa(port))
}

func (*postgres) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGINT) } // "fast"

func (e *postgres) dsn(port int) string { return postgresURL(e.password, port) }

func postgresURL(password string, port int) string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", password, port)
}

func (*postgres) dataDir(h *home) string { return h.path("data") }

func (e *postgres) identity(h *home) string { return e.dataDir(h) }

func (*postgres) askIdentity(ctx context.Context, dsn string) (string, error) {
	return askPostgres(ctx, dsn)
}

func askPostgres(ctx context.Context, dsn string) (dir string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	// The simple protocol prepares nothing, which PgBouncer requires.
	err = conn.QueryRow(ctx, "SHOW data_directory", pgx.QueryExecModeSimpleProtocol).Scan(&dir)
	return dir, err
}
