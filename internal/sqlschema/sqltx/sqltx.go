// Package sqltx runs transactions of database/sql that end only when they are told to, on a connection that no other
// statement uses before its transaction has surely ended.
//
// database/sql alone rolls back when the context of BeginTx ends, behind the back of work that is running or of
// a commit; it has no bound for a commit; and it gives a connection back to the pool whatever a commit said.
package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
)

// EndTime bounds what ends a transaction.
const EndTime = 10 * time.Second

// Transaction has its connection for itself.
type Transaction struct {
	*sql.Tx

	dialect sqlschema.Dialect
	conn    *sql.Conn
	cancel  context.CancelFunc // makes drivers give up that listen to the context of a transaction at its end
	ended   bool
}

// Begin begins a transaction. Its context bounds that, and nothing after it.
func Begin(ctx context.Context, db *sql.DB, d sqlschema.Dialect) (*Transaction, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, cancel)
	t := &Transaction{dialect: d, conn: conn, cancel: cancel}
	if d == sqlschema.MySQL { // what is written after a silent rollback must not commit by itself
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

// abandon ends a transaction that may not have begun.
func (t *Transaction) abandon() {
	if t.Tx != nil {
		t.Rollback()
		return
	}
	t.cancel()
	t.leave(driver.ErrBadConn)
}

// Commit commits. After an error that is not a refusal by the database it is not known whether it did.
func (t *Transaction) Commit() error { return t.end(t.Tx.Commit) }

// Rollback rolls back a transaction that has not ended. If that fails its connection is closed, which does the same.
func (t *Transaction) Rollback() {
	if !t.ended {
		_ = t.end(t.Tx.Rollback)
	}
}

// end bounds how, which takes no context. What is late goes on in the background, and nobody relies on it.
func (t *Transaction) end(how func() error) error {
	t.ended = true
	done := make(chan error, 1)
	go func() {
		defer t.cancel()
		err := how()
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

// leave gives the connection back if its transaction has surely ended, and closes it otherwise.
func (t *Transaction) leave(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), EndTime)
	defer cancel()
	switch {
	case t.dialect == sqlschema.SQLite && err != nil: // a COMMIT that is refused leaves the transaction open
		_, _ = t.conn.ExecContext(ctx, "ROLLBACK") // fails if there is none
		err = nil
	case t.dialect == sqlschema.MySQL && err == nil: // this would commit what is open
		_, err = t.conn.ExecContext(ctx, "SET autocommit=1")
	}
	if err != nil {
		Discard(t.conn)
		return
	}
	_ = t.conn.Close() // gives it back
}

// Discard closes a connection, which the Close of database/sql would give back to the pool.
func Discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
