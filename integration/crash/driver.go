//go:build linux

package crash

import (
	"context"
	"database/sql/driver"
)

// trapped is a database/sql driver that passes the trap before and after each
// call of the driver that it wraps.
type trapped struct {
	driver driver.Driver
	open   func(context.Context) (driver.Conn, error)
	trap   *trap

	// prepares: the driver declines statements with arguments, so that
	// database/sql prepares them
	prepares bool
}

func (d trapped) Driver() driver.Driver { return d.driver }

func (d trapped) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	return &trappedConn{fullConn: conn.(fullConn), trap: d.trap, prepares: d.prepares}, nil
}

// fullConn has the methods that the drivers of all engines have.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

type trappedConn struct {
	fullConn
	trap     *trap
	prepares bool
}

// declines is not a boundary: nothing is sent.
func (c *trappedConn) declines(args []driver.NamedValue) bool { return c.prepares && len(args) > 0 }

func (c *trappedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	defer c.trap.around("sql:begin")()
	tx, err := c.fullConn.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return trappedTx{tx, c.trap}, nil
}

func (c *trappedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.declines(args) {
		return nil, driver.ErrSkip
	}
	defer c.trap.around("sql:exec " + verb(query))()
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c *trappedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if c.declines(args) {
		return nil, driver.ErrSkip
	}
	defer c.trap.around("sql:query " + verb(query))()
	return c.fullConn.QueryContext(ctx, query, args)
}

// PrepareContext is not a boundary: it changes nothing.
func (c *trappedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	st, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &trappedStmt{fullStmt: st.(fullStmt), conn: c, verb: verb(query)}, nil
}

// CheckNamedValue, ResetSession and IsValid call those of the driver, if it has
// them.
func (c *trappedConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.fullConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *trappedConn) ResetSession(ctx context.Context) error {
	if r, ok := c.fullConn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *trappedConn) IsValid() bool {
	v, ok := c.fullConn.(driver.Validator)
	return !ok || v.IsValid()
}

type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type trappedStmt struct {
	fullStmt
	conn *trappedConn
	verb string
}

func (s *trappedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	defer s.conn.trap.around("sql:run " + s.verb)()
	return s.fullStmt.ExecContext(ctx, args)
}

func (s *trappedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	defer s.conn.trap.around("sql:run " + s.verb)()
	return s.fullStmt.QueryContext(ctx, args)
}

func (s *trappedStmt) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := s.fullStmt.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}

type trappedTx struct {
	driver.Tx
	trap *trap
}

func (t trappedTx) Commit() error {
	defer t.trap.around("sql:commit")()
	return t.Tx.Commit()
}

func (t trappedTx) Rollback() error {
	defer t.trap.around("sql:rollback")()
	return t.Tx.Rollback()
}
