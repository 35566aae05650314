package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlschema"
)

// preparer is a driver that only prepares. It counts the statements that are
// open.
type preparer struct {
	mu       sync.Mutex
	open     int
	failing  error
	attempts int
}

func (p *preparer) Connect(context.Context) (driver.Conn, error) { return preparerConn{p}, nil }
func (p *preparer) Driver() driver.Driver                        { return nil }

func (p *preparer) isOpen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

type preparerConn struct{ *preparer }

func (c preparerConn) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }
func (c preparerConn) Close() error              { return nil }

func (c preparerConn) Prepare(string) (driver.Stmt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts++
	if c.failing != nil {
		return nil, c.failing
	}
	c.open++
	return preparerStmt(c), nil
}

type preparerStmt struct{ *preparer }

func (s preparerStmt) NumInput() int                              { return -1 }
func (s preparerStmt) Exec([]driver.Value) (driver.Result, error) { return driver.RowsAffected(1), nil }
func (s preparerStmt) Query([]driver.Value) (driver.Rows, error) {
	return nil, errors.ErrUnsupported
}

func (s preparerStmt) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	return nil
}

func TestStatementsAreSharedAndBounded(t *testing.T) {
	d := &preparer{}
	pool := sql.OpenDB(d)
	defer pool.Close()
	p := preparedOf(pool, sqlschema.SQLite)
	if preparedOf(pool, sqlschema.SQLite) != p {
		t.Error("two stores on one pool do not share their statements")
	}
	for i := range 2 * maxPrepared {
		p.get(fmt.Sprint(i))
	}
	p.prepare(t.Context())
	if n := d.isOpen(); n != maxPrepared {
		t.Errorf("%d are prepared, want %d", n, maxPrepared)
	}
	if p.get("0") == nil || p.get(fmt.Sprint(maxPrepared)) != nil {
		t.Error("the first statements are not those that are prepared")
	}
}

func TestOnlySQLiteAndMySQLHavePreparedStatements(t *testing.T) {
	pool := sql.OpenDB(&preparer{})
	defer pool.Close()
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.SQLServer} {
		if preparedOf(pool, d) != nil {
			t.Errorf("dialect %v has some", d)
		}
	}
}

// A statement that cannot be prepared, because its table is missing for
// example, can be later.
func TestAFailedPreparationIsRepeated(t *testing.T) {
	d := &preparer{failing: errors.New("no such table")}
	pool := sql.OpenDB(d)
	defer pool.Close()
	p := preparedOf(pool, sqlschema.SQLite)
	for range 2 {
		if p.get("a") != nil {
			t.Fatal("a statement is prepared that was not")
		}
		p.prepare(t.Context())
	}
	p.prepare(t.Context()) // which nobody has asked for
	if d.attempts != 2 {
		t.Errorf("it was prepared %d times, want once for each call that needed it", d.attempts)
	}
	d.failing = nil
	p.get("a")
	p.prepare(t.Context())
	if p.get("a") == nil {
		t.Error("it is not prepared, although it can be")
	}
}

// The statements are closed after the last store, and neither the pool nor its
// statements are kept in memory.
func TestStatementsEndWithTheirStores(t *testing.T) {
	d := &preparer{}
	pool := sql.OpenDB(d)
	key := weak.Make(pool)
	p := preparedOf(pool, sqlschema.SQLite)
	p.get("a")
	p.prepare(t.Context())
	if n := d.isOpen(); n != 1 {
		t.Fatalf("%d are prepared", n)
	}
	runtime.KeepAlive(p)
	p = nil
	collected(t, "the statements are closed", func() bool { return d.isOpen() == 0 })
	again := preparedOf(pool, sqlschema.SQLite)
	again.get("a")
	again.prepare(t.Context())
	pool.Close()
	runtime.KeepAlive(again)
	again, pool = nil, nil
	collected(t, "the pool is no longer in memory", func() bool { return key.Value() == nil })
	collected(t, "the pool is forgotten", func() bool {
		pools.Lock()
		defer pools.Unlock()
		_, known := pools.prepared[key]
		return !known
	})
}

func collected(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Patience); !ok(); runtime.Gosched() {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", testenv.Patience, what)
		}
	}
}

// refuser is a server that refuses a large argument, and then each execution of
// that statement, as MySQL does.
type refuser struct{ preparerConn }

func (c refuser) Prepare(string) (driver.Stmt, error) {
	return &refuserStmt{preparerStmt: preparerStmt(c.preparerConn)}, nil
}

type refuserStmt struct {
	preparerStmt
	refuses bool
}

func (s *refuserStmt) Exec(args []driver.Value) (driver.Result, error) {
	for _, arg := range args {
		body, _ := arg.([]byte)
		s.refuses = s.refuses || len(body) > 1<<20
	}
	if s.refuses {
		return nil, errors.New("longer than 'max_allowed_packet' bytes")
	}
	return driver.RowsAffected(1), nil
}

type refuserPool struct{ preparer }

func (p *refuserPool) Connect(context.Context) (driver.Conn, error) {
	return refuser{preparerConn{&p.preparer}}, nil
}

// After the server has refused a large argument, the statement works with others.
func TestALargeArgumentSpoilsNoStatement(t *testing.T) {
	db := sql.OpenDB(new(refuserPool))
	defer db.Close()
	db.SetMaxOpenConns(1)
	p := preparedOf(db, sqlschema.MySQL)
	on := p.on(db)
	exec := func(body []byte) error {
		_, err := on.ExecContext(t.Context(), "UPDATE", body)
		return err
	}
	if err := exec(nil); err != nil {
		t.Fatal(err)
	}
	p.prepare(t.Context())
	if p.get("UPDATE") == nil {
		t.Fatal("the statement is not prepared")
	}
	if exec(make([]byte, 2<<20)) == nil {
		t.Error("the large argument was not refused")
	}
	if err := exec([]byte("small")); err != nil {
		t.Errorf("the statement after that: %v", err)
	}
}
