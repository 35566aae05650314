package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
)

// hooked opens the database of db once more, with a driver that calls around before each statement, and after it what
// around has returned. In MariaDB only with interpolateParams=true: else statements with arguments are prepared.
func hooked(t testing.TB, db *sql.DB, around func(query string) (after func())) *sql.DB {
	t.Helper()
	dsn, _ := dsns.Load(db)
	behind := sql.OpenDB(hookedDriver{db.Driver(), dsn.(string), around})
	t.Cleanup(func() { behind.Close() })
	return behind
}

type hookedDriver struct {
	driver driver.Driver
	dsn    string
	around func(query string) (after func())
}

func (d hookedDriver) Driver() driver.Driver { return d.driver }

func (d hookedDriver) Connect(context.Context) (driver.Conn, error) {
	conn, err := d.driver.Open(d.dsn)
	if err != nil {
		return nil, err
	}
	return hookedConn{conn.(fullConn), d.around}, nil
}

// fullConn is what the drivers of all engines can do.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

type hookedConn struct {
	fullConn
	around func(query string) (after func())
}

func (c hookedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	defer c.around(query)()
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c hookedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	defer c.around(query)()
	return c.fullConn.QueryContext(ctx, query, args)
}

// CheckNamedValue is the driver's where it has one.
func (c hookedConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.fullConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}
