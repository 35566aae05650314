//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// mariadbInit runs at every start, before the first connection. Names are not
// resolved, so the host is an address.
const mariadbInit = `CREATE DATABASE IF NOT EXISTS once CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS once@127.0.0.1 IDENTIFIED BY '%s';
GRANT ALL PRIVILEGES ON *.* TO once@127.0.0.1 WITH GRANT OPTION;
`

type mariadb struct {
	program  string
	install  string
	password string
}

func newMariaDB() (*mariadb, error) {
	program, err := findProgram("mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := findProgram("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	return &mariadb{program: program, install: install, password: rand.Text()}, nil
}

func (*mariadb) kind() Kind { return MariaDB }

func (*mariadb) account() string { return "mysql" }

func (e *mariadb) prepare(ctx context.Context, h *home) error {
	if err := h.write("init.sql", fmt.Sprintf(mariadbInit, e.password)); err != nil {
		return err
	}
	// root gets no password and cannot log in over TCP.
	return h.run(ctx, e.install, "--no-defaults", "--datadir="+e.dataDir(h), "--skip-test-db", "--skip-name-resolve",
		"--auth-root-authentication-method=socket")
}

func (e *mariadb) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, e.program, e.args(h, port)...)
}

func (e *mariadb) args(h *home, port int) []string {
	return []string{"--no-defaults",
		"--datadir=" + e.dataDir(h), "--tmpdir=" + h.path("tmp"), "--init-file=" + h.path("init.sql"),
		"--socket=" + h.path("socket"), "--pid-file=" + h.path("pid"),
		"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port), "--skip-name-resolve",
		"--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--character-set-server=utf8mb4", "--max-connections=500",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--performance-schema=OFF"}
}

func (*mariadb) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGTERM) }

func (e *mariadb) dsn(port int) string {
	return fmt.Sprintf("once:%s@tcp(127.0.0.1:%d)/once", e.password, port)
}

func (*mariadb) dataDir(h *home) string { return h.path("data") }

func (e *mariadb) identity(h *home) string { return e.dataDir(h) }

func (*mariadb) askIdentity(ctx context.Context, dsn string) (string, error) {
	db, err := openMariaDB(dsn)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var dir string
	err = db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir)
	return filepath.Clean(dir), err // it ends with a slash
}

func openMariaDB(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.Logger = &mysql.NopLogger{} // a starting server is expected to refuse
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}
