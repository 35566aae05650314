package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
)

// hooked opens the database of db again, with a driver that calls around before
// each statement, and the function that around returned after it. A rollback counts
// as the statement ROLLBACK. In MariaDB this needs interpolateParams=true. Otherwise
// statements with arguments are prepared.
func hooked(t testing.TB, db *sql.DB, around func(ctx context.Context, query string) (after func())) *sql.DB {
	t.Helper()
	dsn, _ := dsns.Load(db)
	opened := sql.OpenDB(hookedDriver{db.Driver(), dsn.(string), around})
	t.Cleanup(func() { opened.Close() })
	return opened
}

type hookedDriver struct {
	driver driver.Driver
	dsn    string
	around func(ctx context.Context, query string) (after func())
}

func (d hookedDriver) Driver() driver.Driver { return d.driver }

func (d hookedDriver) Connect(context.Context) (driver.Conn, error) {
	conn, err := d.driver.Open(d.dsn)
	if err != nil {
		return nil, err
	}
	return hookedConn{conn.(fullConn), d.around}, nil
}

// fullConn has the methods that the drivers of all engines implement.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

type hookedConn struct {
	fullConn
	around func(ctx context.Context, query string) (after func())
}

func (c hookedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	defer c.around(ctx, query)()
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c hookedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	defer c.around(ctx, query)()
	return c.fullConn.QueryContext(ctx, query, args)
}

func (c hookedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.fullConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return hookedTx{tx, c}, nil
}

type hookedTx struct {
	driver.Tx
	conn hookedConn
}

func (t hookedTx) Rollback() error {
	defer t.conn.around(context.Background(), "ROLLBACK")()
	return t.Tx.Rollback()
}

func (c hookedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	st, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return hookedStmt{st.(fullStmt), c, query}, nil
}

// fullStmt has the methods that the statements of all drivers implement.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type hookedStmt struct {
	fullStmt
	conn  hookedConn
	query string
}

func (s hookedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	defer s.conn.around(ctx, s.query)()
	return s.fullStmt.ExecContext(ctx, args)
}

func (s hookedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	defer s.conn.around(ctx, s.query)()
	return s.fullStmt.QueryContext(ctx, args)
}

// CheckNamedValue calls that of the driver, if it has one.
func (c hookedConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.fullConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}
