// Package lostreply_test loses requests and replies between stores and their
// servers, one by one, and shows that an effect still happens once.
// TestUnguarded shows what drivers do after such a loss if nothing guards the
// effect. Package versions runs these tests with other versions of the drivers.
package lostreply_test

import (
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // a driver of database/sql

	"github.com/effectively-once/once/integration/internal/quietdb"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
)

// site is a database behind a proxy, both for one test, with a direct
// connection.
type site struct {
	driver  string
	proxy   *wire.Proxy
	dsn     string  // through the proxy
	around  string  // around the proxy
	through *sql.DB // through the proxy
	direct  *sql.DB
}

// drivers are the drivers of database/sql, with their differences.
var drivers = map[string]struct {
	registered string
	protocol   wire.Protocol
	fresh      func(*testing.T) string
}{
	"pgx":   {"pgx", wire.Postgres, freshPostgres},
	"pq":    {"postgres", wire.Postgres, freshPostgres},
	"mysql": {"mysql", wire.MySQL, freshMariaDB},
}

// newSite creates a database with tables for effects, inside a guarded
// transaction and elsewhere.
func newSite(t *testing.T, driver string) *site {
	t.Helper()
	d := drivers[driver]
	dsn := d.fresh(t)
	s := &site{driver: driver, around: dsn, direct: quietdb.Open(t, d.registered, dsn)}
	s.proxy, s.dsn = wire.Between(t, dsn, d.protocol)
	s.through = quietdb.Open(t, d.registered, s.dsn)
	quietdb.Exec(t, s.direct, "CREATE TABLE effect (id VARCHAR(100) NOT NULL, run INT NOT NULL)")
	return s
}

// reopen replaces the connections that go through the proxy.
func (s *site) reopen(t *testing.T) {
	t.Helper()
	_ = s.through.Close()
	s.through = quietdb.Open(t, drivers[s.driver].registered, s.dsn)
	if err := s.through.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func freshPostgres(t *testing.T) string {
	dsn := testenv.Postgres(t)
	admin := quietdb.Open(t, "pgx", dsn)
	testenv.CheckPostgres(t, quietdb.Asker(admin))
	schema := unique()
	quietdb.Exec(t, admin, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { quietdb.Exec(t, admin, "DROP SCHEMA "+schema+" CASCADE") })
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

func freshMariaDB(t *testing.T) string {
	admin := quietdb.Open(t, "mysql", testenv.MariaDB(t))
	testenv.CheckMariaDB(t, quietdb.Asker(admin))
	database := unique()
	quietdb.Exec(t, admin, "CREATE DATABASE "+database)
	t.Cleanup(func() { quietdb.Exec(t, admin, "DROP DATABASE "+database) })
	config, err := mysql.ParseDSN(testenv.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	config.DBName = database
	return config.FormatDSN()
}

func unique() string { return "t" + strings.ToLower(rand.Text()) }

// mark is the n-th parameter of a statement.
func (s *site) mark(n int) string {
	if s.driver == "mysql" {
		return "?"
	}
	return fmt.Sprintf("$%d", n)
}

// effects returns the runs that wrote an effect of the ID, in no order.
func (s *site) effects(t *testing.T, id string) (runs []int) {
	t.Helper()
	rows, err := s.direct.Query("SELECT run FROM effect WHERE id = "+s.mark(1), id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var run int
		if err := rows.Scan(&run); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return runs
}
