package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
)

// countedText matches the statements of claims, settlements, and work.
var countedText = regexp.MustCompile(`(?s)^[^A-Z]*(SELECT|INSERT|UPDATE|WITH)\b.*once_(record|shelf|outbox|position)\b`)

// tally counts what a driver is told about statements on the tables of a store.
type tally struct {
	mu       sync.Mutex
	prepared map[prepared]int
	open     int            // prepared statements
	ran      map[string]int // prepared statements, by their text
	direct   int            // statements that the driver took as they were
	refuse   func(text string) error
}

type prepared struct {
	conn int
	text string
}

// tallied opens the database of db again, with a driver that counts.
func tallied(t testing.TB, db *sql.DB) (*sql.DB, *tally) {
	t.Helper()
	dsn, _ := dsns.Load(db)
	n := &tally{prepared: map[prepared]int{}, ran: map[string]int{}}
	counted := sql.OpenDB(&talliedDriver{driver: db.Driver(), dsn: dsn.(string), tally: n})
	counted.SetMaxIdleConns(16)
	t.Cleanup(func() { counted.Close() })
	return counted, n
}

func (n *tally) count(text string, f func()) {
	if countedText.MatchString(text) {
		n.mu.Lock()
		defer n.mu.Unlock()
		f()
	}
}

// again forgets the counts so far. It returns how many statements were prepared
// most often on one connection, how many were run prepared, and how many not.
func (n *tally) again() (most, ran, direct int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, times := range n.prepared {
		most = max(most, times)
	}
	for _, times := range n.ran {
		ran += times
	}
	direct = n.direct
	n.prepared, n.ran, n.direct = map[prepared]int{}, map[string]int{}, 0
	return most, ran, direct
}

type talliedDriver struct {
	driver driver.Driver
	dsn    string
	tally  *tally
	conns  int
}

func (d *talliedDriver) Driver() driver.Driver { return d.driver }

func (d *talliedDriver) Connect(context.Context) (driver.Conn, error) {
	conn, err := d.driver.Open(d.dsn)
	if err != nil {
		return nil, err
	}
	d.tally.mu.Lock()
	defer d.tally.mu.Unlock()
	d.conns++
	return talliedConn{hookedConn{fullConn: conn.(fullConn)}, d.tally, d.conns}, nil
}

type talliedConn struct {
	hookedConn
	tally  *tally
	number int
}

func (c talliedConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	if refuse := c.tally.refuse; refuse != nil {
		if err := refuse(text); err != nil {
			return nil, err
		}
	}
	st, err := c.fullConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	c.tally.count(text, func() { c.tally.prepared[prepared{c.number, text}]++; c.tally.open++ })
	return talliedStmt{st.(fullStmt), c.tally, text}, nil
}

func (c talliedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.fullConn.ExecContext(ctx, text, args)
	c.direct(text, err)
	return result, err
}

func (c talliedConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.fullConn.QueryContext(ctx, text, args)
	c.direct(text, err)
	return rows, err
}

func (c talliedConn) direct(text string, err error) {
	if !errors.Is(err, driver.ErrSkip) {
		c.tally.count(text, func() { c.tally.direct++ })
	}
}

type talliedStmt struct {
	fullStmt
	tally *tally
	text  string
}

func (s talliedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.tally.count(s.text, func() { s.tally.ran[s.text]++ })
	return s.fullStmt.ExecContext(ctx, args)
}

func (s talliedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.tally.count(s.text, func() { s.tally.ran[s.text]++ })
	return s.fullStmt.QueryContext(ctx, args)
}

func (s talliedStmt) Close() error {
	s.tally.count(s.text, func() { s.tally.open-- })
	return s.fullStmt.Close()
}

// everyWay claims and settles a new key in each of the ways there are.
func everyWay(t testing.TB, s *sqlstore.Store, db *sql.DB, id string) {
	t.Helper()
	ctx := t.Context()
	rec, err := s.Claim(ctx, request("claim "+id, "a"))
	must(t, err)
	must(t, s.Settle(ctx, settlement(rec, once.Done)))
	_, err = s.Transact(ctx, []once.ClaimRequest{request("transact "+id, "a")}, writing(ctx, id))
	must(t, err)
	tx, err := db.BeginTx(ctx, nil)
	must(t, err)
	defer tx.Rollback()
	recs, err := s.ClaimTx(ctx, tx, []once.ClaimRequest{request("in "+id, "a"), request("tx "+id, "a")})
	must(t, err)
	_, err = s.BlockedTx(ctx, tx, "billing", []string{"k"}, true)
	must(t, err)
	must(t, s.PutTx(ctx, tx, []store.Outgoing{out(id)}))
	must(t, s.SettleTx(ctx, tx, []once.Settlement{settlement(recs[0], once.Done), settlement(recs[1], once.Done)}))
	must(t, tx.Commit())
	for _, way := range []string{"claim ", "transact ", "in ", "tx "} {
		if rec, err := s.Get(ctx, key(way+id)); err != nil || rec.Status != once.Done {
			t.Errorf("%s%s: %v, %v; want done", way, id, rec.Status, err)
		}
	}
}

// In SQLite and MySQL, a statement is prepared once on each connection, and not
// at each call.
func TestStatementsArePreparedOncePerConnection(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		_, plain := e.migrated(t)
		db, n := tallied(t, plain)
		s := sqlstore.New(db, e.dialect, nil)
		for i := range 2 { // a statement is prepared after its first use
			everyWay(t, s, db, fmt.Sprint("first ", i))
		}
		n.again()
		for i := range 5 {
			everyWay(t, s, db, fmt.Sprint("later ", i))
		}
		prepared, ran, direct := n.again()
		if e.dialect == sqlstore.PostgreSQL {
			if prepared+ran > 0 || direct == 0 {
				t.Errorf("the store prepared %d statements and sent %d: leave that to pgx", prepared, direct)
			}
			return
		}
		if prepared != 0 || ran == 0 || direct != 0 {
			t.Errorf("one connection: %d were prepared, %d run, and %d sent unprepared", prepared, ran, direct)
		}
		from, err := s.OpenPosition(t.Context(), "billing", "0")
		must(t, err)
		for i := range 5 {
			if i == 2 {
				n.again()
			}
			to := from
			to.Log, to.Offset = "log", from.Offset+1
			must(t, s.TransactAt(t.Context(), from, to, func(*sql.Tx) error { return nil }))
			from = to
		}
		if prepared, ran, direct := n.again(); prepared != 0 || ran != 6 || direct != 0 {
			t.Errorf("three moves of a position: %d were prepared, %d run, and %d sent unprepared", prepared, ran, direct)
		}
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range 5 {
					everyWay(t, s, db, fmt.Sprint("worker ", worker, " ", i))
				}
			})
		}
		wg.Wait()
		if prepared, ran, direct := n.again(); prepared > 1 || ran == 0 || direct != 0 {
			t.Errorf("8 connections: one statement was prepared %d times on one of them, %d run, %d sent unprepared",
				prepared, ran, direct)
		}
	})
}

// A driver that needs no prepared statement was told to do without.
func TestInterpolatedStatementsAreNotPrepared(t *testing.T) {
	e := engines[2]
	_, plain := e.migrated(t, quickSettings(e)...)
	db, n := tallied(t, plain)
	s := sqlstore.New(db, e.dialect, nil)
	for i := range 5 {
		everyWay(t, s, db, fmt.Sprint(i))
	}
	if prepared, ran, direct := n.again(); prepared+ran > 0 || direct == 0 {
		t.Errorf("%d were prepared, %d run, %d sent as they are", prepared, ran, direct)
	}
}

// To prepare a statement takes a connection, for which a call inside the only
// transaction would wait forever.
func TestOneConnectionIsEnoughToPrepare(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		db.SetMaxOpenConns(1)
		tx, err := db.Begin()
		must(t, err)
		defer tx.Rollback()
		for i := range 3 {
			_, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request(fmt.Sprint(i), "a")})
			must(t, err)
		}
		must(t, tx.Rollback())
		for i := range 3 {
			everyWay(t, s, db, fmt.Sprint(i))
		}
		idle(t, db)
	})
}

// A transaction may be one of another pool on the same database.
func TestTransactionsOfAnotherPoolAreServed(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		open := e.fresh(t)
		db, other := open(t), open(t)
		s := sqlstore.New(db, e.dialect, nil)
		must(t, s.Migrate(t.Context()))
		mustExec(t, db, effectTable)
		for i := range 3 {
			everyWay(t, s, other, fmt.Sprint(i))
		}
	})
}

// On SQLite, goroutines may share a transaction. MySQL and PostgreSQL have one
// conversation on a connection.
func TestGoroutinesMayShareATransaction(t *testing.T) {
	e := engines[0]
	s, db := e.migrated(t)
	for i := range 2 {
		everyWay(t, s, db, fmt.Sprint(i))
	}
	for round := range 50 {
		tx, err := db.Begin()
		must(t, err)
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				r := request(fmt.Sprint(round, " ", worker), "a")
				recs, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
				if err != nil || recs[0].Key != r.Key || !recs[0].HeldBy(r.Owner) {
					t.Errorf("ClaimTx returned %+v, %v", recs, err)
				}
			})
		}
		wg.Wait()
		must(t, tx.Commit())
	}
}

// The statements of stores that share a pool are bounded, however many stores
// there are, and their calls succeed beyond the bound.
func TestManyStoresHaveFewStatements(t *testing.T) {
	for _, e := range []engine{engines[0], engines[2]} {
		t.Run(e.name, func(t *testing.T) {
			_, plain := e.migrated(t)
			db, n := tallied(t, plain)
			db.SetMaxOpenConns(1)
			var all []*sqlstore.Store
			for i := range 10 { // of the same tables
				s := sqlstore.New(db, e.dialect, nil)
				all = append(all, s)
				for call := range 2 {
					everyWay(t, s, db, fmt.Sprint(i, " ", call))
				}
				if n.open > 8 {
					t.Fatalf("%d stores on the same tables: %d statements are prepared", i+1, n.open)
				}
			}
			for i := range 12 {
				o := &sqlstore.Options{Prefix: fmt.Sprintf("s%d_once_", i)}
				s := sqlstore.New(db, e.dialect, o)
				must(t, s.Migrate(t.Context()))
				all = append(all, s)
				for call := range 2 {
					everyWay(t, s, db, fmt.Sprint("prefix ", call))
				}
			}
			if n.open < 20 || n.open > 32 {
				t.Errorf("the stores of 12 prefixes: %d statements are prepared, want 32 at most", n.open)
			}
			runtime.KeepAlive(all)
		})
	}
}

// A statement outlives changes of its tables.
func TestPreparedStatementsFollowTheTables(t *testing.T) {
	for _, e := range []engine{engines[0], engines[2]} {
		t.Run(e.name, func(t *testing.T) {
			s, db := e.migrated(t)
			db.SetMaxOpenConns(2)
			for i := range 3 {
				everyWay(t, s, db, fmt.Sprint("before ", i))
			}
			mustExec(t, db, "ALTER TABLE once_record ADD COLUMN added varchar(10) NOT NULL DEFAULT 'x'")
			for i := range 3 {
				everyWay(t, s, db, fmt.Sprint("altered ", i))
			}
			dropTables(t, db, e)
			if _, err := s.Claim(t.Context(), request("dropped", "a")); err == nil {
				t.Fatal("a claim without a table succeeded: the test has not dropped it")
			}
			must(t, sqlstore.New(db, e.dialect, nil).Migrate(t.Context()))
			for i := range 3 {
				everyWay(t, s, db, fmt.Sprint("new ", i))
			}
			if rec, err := s.Get(t.Context(), key("claim before 0")); err != nil || rec.Status != once.Absent {
				t.Errorf("a key of the dropped table is %v, %v", rec.Status, err)
			}
		})
	}
}

func dropTables(t *testing.T, db *sql.DB, e engine) {
	t.Helper()
	query := "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'once%'"
	if e.dialect == sqlstore.MySQL {
		query = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'once%'"
	}
	rows, err := db.Query(query)
	must(t, err)
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		must(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	must(t, rows.Err())
	for _, table := range tables {
		mustExec(t, db, "DROP TABLE "+table)
	}
}

// When a server has closed the connections, calls prepare their statements on
// new ones.
func TestStatementsArePreparedOnNewConnections(t *testing.T) {
	for _, e := range []engine{engines[0], engines[2]} {
		t.Run(e.name, func(t *testing.T) {
			_, plain := e.migrated(t)
			db, n := tallied(t, plain)
			s := sqlstore.New(db, e.dialect, nil)
			for i := range 2 { // until then, the driver of MySQL prepares at each call
				everyWay(t, s, db, fmt.Sprint("first ", i))
			}
			n.again()
			for round := range 30 {
				for i := range 2 {
					everyWay(t, s, db, fmt.Sprint(round, " ", i))
				}
				conn, err := db.Conn(t.Context())
				must(t, err)
				_ = conn.Raw(func(any) error { return driver.ErrBadConn })
				_ = conn.Close()
			}
			if prepared, _, _ := n.again(); prepared != 1 {
				t.Errorf("a statement was prepared %d times on one connection", prepared)
			}
			everyWay(t, s, db, "last")
			if n.open > 8 {
				t.Errorf("%d statements of connections that are closed were left open", n.open)
			}
		})
	}
}

// The server closes connections that hold prepared statements, idle or in a
// transaction.
func TestKilledConnectionsArePreparedAgain(t *testing.T) {
	e := engines[2]
	s, db := e.migrated(t)
	_, admin := e.migrated(t)
	kill := func(q interface{ QueryRow(string, ...any) *sql.Row }) {
		var id int
		must(t, q.QueryRow("SELECT connection_id()").Scan(&id))
		mustExec(t, admin, fmt.Sprint("KILL CONNECTION ", id))
		proof.Await(t, "the connection is gone", func() bool {
			return number(t, admin, fmt.Sprint("SELECT count(*) FROM information_schema.processlist WHERE id = ", id)) == 0
		})
	}
	db.SetMaxOpenConns(1)
	for i := range 2 {
		everyWay(t, s, db, fmt.Sprint("before ", i))
	}
	kill(db)
	everyWay(t, s, db, "idle")
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("killed", "a")}, doing(func(tx *sql.Tx) error {
		kill(tx)
		return nil
	}))
	if err == nil {
		t.Fatal("a transaction whose connection was killed has committed")
	}
	absent(t, s, "killed")
	everyWay(t, s, db, "open")
	idle(t, db)
}

// A server may have no room for more prepared statements, or have lost those of
// a connection, as behind a proxy. Nothing has happened then, and the statement
// is sent as it is.
func TestARefusedStatementIsSentAsItIs(t *testing.T) {
	e := engines[2]
	_, plain := e.migrated(t)
	db, n := tallied(t, plain)
	db.SetMaxOpenConns(1)
	s := sqlstore.New(db, e.dialect, nil)
	for i := range 2 {
		everyWay(t, s, db, fmt.Sprint("before ", i))
	}
	conn, err := db.Conn(t.Context())
	must(t, err)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
	refused := 0
	n.refuse = func(text string) error { // every other one: the first is that of the store
		if !countedText.MatchString(text) {
			return nil
		}
		if refused++; refused%2 == 1 {
			return &mysql.MySQLError{Number: 1461, Message: "Can't create more than max_prepared_stmt_count statements"}
		}
		return nil
	}
	everyWay(t, s, db, "refused")
	if refused < 8 {
		t.Errorf("%d statements were prepared, want two for each that is used", refused)
	}
}
