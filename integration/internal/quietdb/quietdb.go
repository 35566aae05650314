// Package quietdb opens databases for tests that lose connections on purpose.
package quietdb

import (
	"context"
	"database/sql"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/go-sql-driver/mysql"
)

// Open opens a database, and closes it when the test ends. The MySQL driver logs
// no lost connections.
func Open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if driver == "mysql" {
		db, err = openMySQL(dsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openMySQL(dsn string) (*sql.DB, error) {
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

// Exec runs a statement. It works in a Cleanup too.
func Exec(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Asker returns a function that runs a query for one text, as package testenv
// needs it to check a server.
func Asker(db *sql.DB) func(query string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}
