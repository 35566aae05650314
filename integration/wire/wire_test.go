package wire_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/effectively-once/once/integration/internal/quietdb"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
)

// server is a database behind a proxy, with a direct connection.
type server struct {
	proxy  *wire.Proxy
	db     *sql.DB // through the proxy
	direct *sql.DB
	table  string
}

var servers = []struct {
	name     string
	driver   string
	dsn      func(testing.TB) string
	check    func(testing.TB, func(string) (string, error))
	protocol wire.Protocol
	mark     string // of a parameter
}{
	{"postgres", "pgx", testenv.Postgres, testenv.CheckPostgres, wire.Postgres, "$1"},
	{"mariadb", "mysql", testenv.MariaDB, testenv.CheckMariaDB, wire.MySQL, "?"},
}

func onEach(t *testing.T, test func(t *testing.T, s *server)) {
	for _, e := range servers {
		t.Run(e.name, func(t *testing.T) {
			direct := quietdb.Open(t, e.driver, e.dsn(t))
			e.check(t, quietdb.Asker(direct))
			proxy, dsn := wire.Between(t, e.dsn(t), e.protocol)
			s := &server{proxy, quietdb.Open(t, e.driver, dsn), direct, "wire_" + rand.Text()}
			quietdb.Exec(t, direct, "CREATE TABLE "+s.table+" (name VARCHAR(100) NOT NULL)")
			t.Cleanup(func() { quietdb.Exec(t, direct, "DROP TABLE "+s.table) })
			test(t, s)
		})
	}
}

// conn returns one connection. A pool would replace a lost connection by
// itself.
func (s *server) conn(t *testing.T) *sql.Conn {
	t.Helper()
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *server) insert(name string) string {
	return fmt.Sprintf("INSERT INTO %s (name) VALUES ('%s')", s.table, name)
}

func (s *server) rows(t *testing.T) (n int) {
	t.Helper()
	if err := s.direct.QueryRow("SELECT count(*) FROM " + s.table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func wantHits(t *testing.T, r *wire.Rule, want int) {
	t.Helper()
	if got := r.Hits(); got != want {
		t.Errorf("the rule was applied %d times, want %d", got, want)
	}
}

func TestActions(t *testing.T) {
	for name, test := range map[string]struct {
		action wire.Action
		rows   int
		fails  bool
		slow   bool // the client ends it, after a bound of its own
	}{
		"pass":          {wire.Pass, 1, false, false},
		"delay":         {wire.Delay(30 * time.Millisecond), 1, false, false},
		"late reply":    {wire.DelayReply(30 * time.Millisecond), 1, false, false},
		"drop request":  {wire.DropRequest, 0, true, false},
		"swallow reply": {wire.SwallowReply, 1, true, false},
		"first byte":    {wire.CutReply(1), 1, true, false},
		"all but one":   {wire.CutReply(-1), 1, true, false},
		"hang request":  {wire.HangRequest, 0, true, true},
		"hang reply":    {wire.HangReply, 1, true, true},
		"split request": {wire.SplitRequest, 0, true, true},
		"split reply":   {wire.SplitReply, 1, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *server) {
				conn := s.conn(t)
				rule := s.proxy.On(wire.Runs("insert into "+s.table), test.action)
				limit := 20 * time.Second
				if test.slow {
					limit = 150 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := conn.ExecContext(ctx, s.insert("a"))
				if (err != nil) != test.fails {
					t.Errorf("the client got %v", err)
				}
				if timedOut := ctx.Err() != nil; timedOut != test.slow {
					t.Errorf("timed out: %v, after %v", timedOut, err)
				}
				<-rule.Done()
				wantHits(t, rule, 1)
				if got := s.rows(t); got != test.rows {
					t.Errorf("%d rows, want %d", got, test.rows)
				}
			})
		})
	}
}

func TestDelayTakesItsTime(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		rule := s.proxy.On(wire.Runs(s.table), wire.Delay(100*time.Millisecond), wire.Always)
		conn := s.conn(t)
		begun := time.Now()
		for range 2 {
			if _, err := conn.ExecContext(t.Context(), s.insert("a")); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took < 200*time.Millisecond {
			t.Errorf("two requests took %v", took)
		}
		wantHits(t, rule, 2)
	})
}

// After LeaveServer, the server may execute the request or not. pgx even
// cancels the request of a lost connection through another one, and is
// sometimes fast enough.
func TestLeaveServer(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		deadline := time.Now().Add(testenv.Patience)
		for s.rows(t) == 0 && time.Now().Before(deadline) {
			conn := s.conn(t)
			rule := s.proxy.On(wire.Runs(s.table), wire.LeaveServer)
			if _, err := conn.ExecContext(t.Context(), s.insert("a")); err == nil {
				t.Error("the client got an answer")
			}
			wantHits(t, rule, 1)
		}
		if s.rows(t) == 0 {
			t.Error("the server never got the request")
		}
	})
}

func TestRulesCountAndSkip(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		all := s.proxy.On(wire.Runs(s.table), wire.Pass, wire.Always)
		removed := s.proxy.On(wire.Runs(s.table), wire.DropRequest)
		removed.Remove()
		third := s.proxy.On(wire.Runs(s.table), wire.SwallowReply, wire.Skip(2))
		conn := s.conn(t)
		for i := range 3 {
			if _, err := conn.ExecContext(t.Context(), s.insert("a")); (err != nil) != (i == 2) {
				t.Errorf("insert %d: %v", i, err)
			}
		}
		wantHits(t, all, 3)
		wantHits(t, third, 1)
		wantHits(t, removed, 0)
		if got := s.rows(t); got != 3 {
			t.Errorf("%d rows, want 3", got)
		}
	})
}

// The proxy recognizes a statement that was prepared earlier by its name or
// number.
func TestPreparedStatements(t *testing.T) {
	for _, e := range servers {
		t.Run(e.name, func(t *testing.T) {
			proxy, dsn := wire.Between(t, e.dsn(t), e.protocol)
			db := quietdb.Open(t, e.driver, dsn)
			db.SetMaxOpenConns(1)
			statement, err := db.PrepareContext(t.Context(), "SELECT 7, 'prepared' WHERE "+e.mark+" = 'x'")
			if err != nil {
				t.Fatal(err)
			}
			sent := proxy.On(wire.Sends("prepared"), wire.Pass, wire.Always)
			run := proxy.On(wire.Runs("prepared"), wire.Pass, wire.Always)
			for range 3 {
				var n int
				var text string
				if err := statement.QueryRowContext(t.Context(), "x").Scan(&n, &text); err != nil || n != 7 || text != "prepared" {
					t.Errorf("got %d, %q, %v", n, text, err)
				}
			}
			wantHits(t, run, 3)
			if sent.Hits() < 3 {
				t.Errorf("%d requests had the text", sent.Hits())
			}
		})
	}
}

// The server does not learn that its client has closed the connection until
// Cut.
func TestSplitKeepsTheSession(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		quietdb.Exec(t, s.direct, s.insert("a"))
		tx, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		rule := s.proxy.On(wire.Runs("UPDATE "+s.table), wire.SplitReply)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := tx.ExecContext(ctx, "UPDATE "+s.table+" SET name = 'b'"); err == nil {
			t.Error("the client got an answer")
		}
		_ = tx.Rollback() // sends what a client sends when it gives up
		wantHits(t, rule, 1)
		free := make(chan error, 1)
		go func() {
			_, err := s.direct.ExecContext(t.Context(), "UPDATE "+s.table+" SET name = 'c'")
			free <- err
		}()
		select {
		case err := <-free:
			t.Errorf("the row was free while its holder was cut off: %v", err)
		case <-time.After(300 * time.Millisecond): // longer than an update takes
		}
		s.proxy.Cut()
		if err := <-free; err != nil {
			t.Error(err)
		}
	})
}

func TestDownAndUp(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		quietdb.Exec(t, s.db, s.insert("a"))
		s.proxy.Down()
		if err := s.db.PingContext(t.Context()); err == nil {
			t.Error("reached, although it is down")
		}
		s.proxy.Up()
		if err := s.db.PingContext(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The test sends all kinds of requests. The proxy holds back every answer until
// it is complete, so an answer whose end it does not recognize never arrives.
func TestWhatPassesIsUnchanged(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		db := s.db
		db.SetMaxOpenConns(1)
		s.proxy.On(wire.Any, wire.DelayReply(0), wire.Always)
		for i := range 100 {
			quietdb.Exec(t, db, s.insert(fmt.Sprintf("row %d", i)))
		}
		for range 3 {
			if n := number(t, db, "SELECT count(*) FROM "+s.table+" a, "+s.table+" b WHERE a.name <> b.name"); n != 9900 {
				t.Errorf("got %d", n)
			}
			if _, err := db.ExecContext(t.Context(), "SELECT nothing FROM nowhere"); err == nil {
				t.Error("an error of the server did not arrive")
			}
			if names := names(t, db, "SELECT a.name FROM "+s.table+" a, "+s.table+" b"); len(names) != 10000 {
				t.Errorf("%d rows arrived", len(names))
			}
			if names := names(t, db, "SELECT name FROM "+s.table+" WHERE 1 = 0"); len(names) != 0 {
				t.Errorf("%d rows arrived", len(names))
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), "DELETE FROM "+s.table); err != nil {
				t.Error(err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

func names(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Error(err)
		}
		all = append(all, name)
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return all
}
