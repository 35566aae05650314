//go:build linux

package server

import (
	"context"
	"fmt"
	"syscall"
)

// pgbouncerSettings have no Unix socket, so that an occupied port is an error
// instead of a warning. A killed PostgreSQL is retried soon, not after the
// default of 15 seconds.
const pgbouncerSettings = `[databases]
* = host=127.0.0.1 port=%d

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
server_login_retry = 1
auth_type = plain
auth_file = %s
admin_users = postgres
`

type pgbouncer struct {
	program  string
	upstream *Instance
	password string
}

func newPgBouncer(upstream *Instance) (*pgbouncer, error) {
	behind, ok := upstream.engine.(*postgres)
	if !ok {
		return nil, fmt.Errorf("a PgBouncer stands in front of a PostgreSQL, not of a %s", upstream.engine.kind())
	}
	program, err := findProgram("pgbouncer")
	if err != nil {
		return nil, err
	}
	return &pgbouncer{program: program, upstream: upstream, password: behind.password}, nil
}

func (*pgbouncer) kind() Kind { return PgBouncer }

// account is that of PostgreSQL, as in Debian's package.
func (*pgbouncer) account() string { return "postgres" }

func (e *pgbouncer) prepare(_ context.Context, h *home) error {
	return h.write("users", fmt.Sprintf("\"postgres\" \"%s\"\n", e.password))
}

func (e *pgbouncer) launch(h *home, port int) (*process, error) {
	err := h.write("pgbouncer.ini", fmt.Sprintf(pgbouncerSettings, e.upstream.port, port, h.path("users")))
	if err != nil {
		return nil, err
	}
	return h.launch(syscall.SIGKILL, e.program, h.path("pgbouncer.ini"))
}

// shutdown kills the process: a PgBouncer holds no data, and the signal that
// waits for its clients differs between releases.
func (*pgbouncer) shutdown(p *process) error { return p.kill() }

func (e *pgbouncer) dsn(port int) string { return postgresURL(e.password, port) }

func (e *pgbouncer) identity(*home) string { return e.upstream.Identity() }

func (*pgbouncer) askIdentity(ctx context.Context, dsn string) (string, error) {
	return askPostgres(ctx, dsn)
}
