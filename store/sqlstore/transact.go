package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
)

// finishTime bounds what ends a transaction, whatever became of the caller.
const finishTime = 10 * time.Second

// Transact claims, runs body and settles in one transaction, which ends only here. Body may use the transaction for
// anything but Commit and Rollback; see the package documentation for what each database adds to that.
func (s *Store) Transact(ctx context.Context, rs []once.Request,
	body func(*sql.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	t, err := s.begin(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	defer t.rollBack() // whatever way out is taken, a panic too; after the commit there is nothing left to do
	claimed, err := s.claimBounded(ctx, t.tx, rs)
	if err != nil || !holdsAny(rs, claimed) {
		return claimed, err
	}
	sets, err := body(t.tx, slices.Clone(claimed))
	if err != nil {
		return nil, s.conflict(err)
	}
	if err := s.settleOwn(ctx, t.tx, sets); err != nil {
		return nil, err
	}
	if err := t.commit(); err != nil {
		return nil, s.commitFailed(err)
	}
	return claimed, nil
}

func holdsAny(rs []once.Request, recs []once.Record) bool {
	for i, rec := range recs {
		if mine(rs[i], rec) {
			return true
		}
	}
	return false
}

// readyTx is ready for a transaction of the caller's.
func (s *Store) readyTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the *sql.Tx is nil", once.ErrInvalid)
	}
	return s.ready(ctx, tx)
}

// transaction is one of our own. It has its connection for itself, so that no other statement runs on it before it
// has surely ended.
type transaction struct {
	dialect sqlschema.Dialect
	conn    *sql.Conn
	tx      *sql.Tx
	cancel  context.CancelFunc // makes drivers give up that listen to the context of a transaction at its end
	ended   bool
}

// begin lets ctx bound the beginning, and nothing after it: database/sql rolls back when a transaction's context ends,
// behind the back of a body that is running or of a commit.
func (s *Store) begin(ctx context.Context) (*transaction, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, cancel)
	t := &transaction{dialect: s.dialect, conn: conn, cancel: cancel}
	if s.dialect == sqlschema.MySQL { // what a handler writes after a silent rollback must not commit by itself
		_, err = conn.ExecContext(life, "SET autocommit=0")
	}
	if err == nil {
		t.tx, err = conn.BeginTx(life, nil)
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
func (t *transaction) abandon() {
	if t.tx != nil {
		t.rollBack()
		return
	}
	t.cancel()
	t.leave(driver.ErrBadConn)
}

func (t *transaction) commit() error { return t.end(t.tx.Commit) }

func (t *transaction) rollBack() {
	if !t.ended {
		_ = t.end(t.tx.Rollback) // after a failure the connection is thrown away, and the transaction with it
	}
}

var errNoAnswer = fmt.Errorf("the database did not answer within %v", finishTime)

// end bounds how, which takes no context. What is late goes on in the background, and nobody relies on it.
func (t *transaction) end(how func() error) error {
	t.ended = true
	done := make(chan error, 1)
	go func() {
		defer t.cancel()
		err := how()
		t.leave(err)
		done <- err
	}()
	timer := time.NewTimer(finishTime)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.cancel()
		return errNoAnswer
	}
}

// leave gives the connection back if its transaction has surely ended, and discards it otherwise.
func (t *transaction) leave(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	switch {
	case t.dialect == sqlschema.SQLite && err != nil: // a COMMIT that is refused leaves the transaction open
		_, _ = t.conn.ExecContext(ctx, "ROLLBACK") // fails if there is none
		err = nil
	case t.dialect == sqlschema.MySQL && err == nil: // this would commit what is open
		_, err = t.conn.ExecContext(ctx, "SET autocommit=1")
	}
	if err != nil {
		discard(t.conn)
		return
	}
	_ = t.conn.Close() // gives it back to the pool
}

// discard closes the connection itself, instead of giving it back to the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
