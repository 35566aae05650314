// Package sqltx has transactions of database/sql that end only by Commit or
// Rollback. Their connection returns to the pool only when its transaction has
// certainly ended.
//
// database/sql alone rolls back when the context of BeginTx ends, even during
// work or a commit. It does not bound the time of a commit. And it returns the
// connection to the pool whatever the result of the commit.
package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/effectively-once/once/store/sqlschema"
)

// EndTime bounds the time of a commit or rollback.
const EndTime = 10 * time.Second

// Transaction is a transaction on a connection of its own.
type Transaction struct {
	*sql.Tx

	dialect sqlschema.Dialect
	conn    *sql.Conn
	cancel  context.CancelFunc // interrupts a commit or rollback, if the driver listens
	ended   bool
}

// Begin begins a transaction. The context bounds only BEGIN.
func Begin(ctx context.Context, db *sql.DB, d sqlschema.Dialect) (*Transaction, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, cancel)
	t := &Transaction{dialect: d, conn: conn, cancel: cancel}
	if d == sqlschema.MySQL { // a statement after a silent rollback must not commit by itself
		_, err = conn.ExecContext(life, "SET autocommit=0")
	}
	if err == nil {
		t.Tx, err = conn.BeginTx(life, nil)
	}
	if !release() {
		err = ctx.Err()
	}
	if err != nil {
		t.abandon()
		return nil, err
	}
	return t, nil
}

// abandon ends a transaction whose BEGIN failed.
func (t *Transaction) abandon() {
	if t.Tx != nil {
		t.Rollback()
		return
	}
	t.cancel()
	t.leave(driver.ErrBadConn)
}

// Commit commits. After an error that does not mean that the database refused,
// nobody knows whether the transaction was committed.
func (t *Transaction) Commit() error { return t.end(t.Tx.Commit) }

// Rollback rolls back a transaction that has not ended. If that fails, it
// closes the connection, which has the same effect.
func (t *Transaction) Rollback() {
	if !t.ended {
		_ = t.end(t.Tx.Rollback)
	}
}

// end runs commitOrRollback for at most EndTime. After that, it continues in
// the background.
func (t *Transaction) end(commitOrRollback func() error) error {
	t.ended = true
	done := make(chan error, 1)
	go func() {
		defer t.cancel()
		err := commitOrRollback()
		t.leave(err)
		done <- err
	}()
	timer := time.NewTimer(EndTime)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.cancel()
		return fmt.Errorf("the database did not answer within %v", EndTime)
	}
}

// leave returns the connection to the pool if its transaction has certainly
// ended, and closes it otherwise.
func (t *Transaction) leave(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), EndTime)
	defer cancel()
	switch {
	case t.dialect == sqlschema.SQLite && err != nil: // a COMMIT that is refused leaves the transaction open
		_, _ = t.conn.ExecContext(ctx, "ROLLBACK") // fails if there is none
		err = nil
	case t.dialect == sqlschema.MySQL && err == nil: // after an error, it would commit an open transaction
		_, err = t.conn.ExecContext(ctx, "SET autocommit=1")
	}
	if err != nil {
		Discard(t.conn)
		return
	}
	_ = t.conn.Close() // returns it to the pool
}

// Discard closes a connection. The Close of sql.Conn would return it to the
// pool.
func Discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
