// Package lostreply_test loses requests and replies between this module's stores and their servers, one by one, and
// shows that an effect happens once all the same. What drivers do with such a loss when nothing guards the effect is
// in TestUnguarded; ../versions runs all of it with other versions of the drivers.
package lostreply_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // a driver of database/sql

	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
)

// site is a database of its own behind a proxy of its own, and a way around the proxy.
type site struct {
	driver  string
	proxy   *wire.Proxy
	dsn     string  // through the proxy
	around  string  // past it
	through *sql.DB // the same
	direct  *sql.DB
}

// drivers are those of database/sql, with what tells them apart.
var drivers = map[string]struct {
	registered string
	protocol   wire.Protocol
	fresh      func(*testing.T) string
}{
	"pgx":   {"pgx", wire.Postgres, freshPostgres},
	"pq":    {"postgres", wire.Postgres, freshPostgres},
	"mysql": {"mysql", wire.MySQL, freshMariaDB},
}

// newSite makes a database with the tables for effects: written inside of a guarded transaction, or elsewhere.
func newSite(t *testing.T, driver string) *site {
	t.Helper()
	d := drivers[driver]
	dsn := d.fresh(t)
	s := &site{driver: driver, around: dsn, direct: open(t, d.registered, dsn)}
	s.proxy, s.dsn = wire.Between(t, dsn, d.protocol)
	s.through = open(t, d.registered, s.dsn)
	exec(t, s.direct, "CREATE TABLE effect (id VARCHAR(100) NOT NULL, run INT NOT NULL)")
	return s
}

// reopen leaves the connections behind that went through the proxy until now.
func (s *site) reopen(t *testing.T) {
	t.Helper()
	_ = s.through.Close()
	s.through = open(t, drivers[s.driver].registered, s.dsn)
	if err := s.through.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func freshPostgres(t *testing.T) string {
	dsn := testenv.Postgres(t)
	admin := open(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(admin))
	schema := unique()
	exec(t, admin, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { exec(t, admin, "DROP SCHEMA "+schema+" CASCADE") })
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
	admin := open(t, "mysql", testenv.MariaDB(t))
	testenv.CheckMariaDB(t, asker(admin))
	database := unique()
	exec(t, admin, "CREATE DATABASE "+database)
	t.Cleanup(func() { exec(t, admin, "DROP DATABASE "+database) })
	config, err := mysql.ParseDSN(testenv.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	config.DBName = database
	return config.FormatDSN()
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if driver == "mysql" {
		db, err = openQuietly(dsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// openQuietly: that connections are lost is no news here.
func openQuietly(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func unique() string { return "t" + strings.ToLower(rand.Text()) }

// mark is the n-th parameter of a statement.
func (s *site) mark(n int) string {
	if s.driver == "mysql" {
		return "?"
	}
	return fmt.Sprintf("$%d", n)
}

// effects are the runs that wrote an effect of the id, in no order.
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

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
