package pgstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pool connects to the test server. The pool is closed with the test.
func pool(t testing.TB, dsn string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	for _, change := range changes {
		change(cfg)
	}
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func mode(m pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = m }
}

func isolation(level pgx.TxIsoLevel) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level)
	}
}

// schema creates a schema for a test, and drops it with the test.
func schema(t testing.TB, admin *pgxpool.Pool) string {
	t.Helper()
	name := fmt.Sprintf("pgstore_%x", random())
	must(t, admin, `CREATE SCHEMA `+name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
		defer cancel()
		if _, err := admin.Exec(ctx, `DROP SCHEMA `+name+` CASCADE`); err != nil {
			t.Log(err)
		}
	})
	return name
}

// fixture is a store in a schema of its own, with a table for the rows of work.
type fixture struct {
	*pgstore.Store
	admin, pool *pgxpool.Pool
	schema      string
}

func (f *fixture) effects() string { return f.schema + ".effect" }
func (f *fixture) records() string { return f.schema + ".once_record" }

func newFixture(t testing.TB, changes ...func(*pgxpool.Config)) *fixture {
	t.Helper()
	admin := pool(t, server(t))
	name := schema(t, admin)
	p := pool(t, server(t), changes...)
	f := &fixture{Store: pgstore.New(p, &pgstore.Options{Schema: name}), admin: admin, pool: p, schema: name}
	if err := f.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, admin, `CREATE TABLE `+f.effects()+` (name text NOT NULL)`)
	return f
}

// again returns another store on the same tables, with a pool of its own.
func (f *fixture) again(t testing.TB, changes ...func(*pgxpool.Config)) *pgstore.Store {
	return pgstore.New(pool(t, server(t), changes...), &pgstore.Options{Schema: f.schema})
}

func (f *fixture) write(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+f.effects()+` VALUES ($1)`, name)
	return err
}

func (f *fixture) count(t testing.TB, name string) (n int) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM `+f.effects()+` WHERE name = $1`, name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func must(t testing.TB, p *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := p.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func random() (token [16]byte) {
	rand.Read(token[:])
	return token
}

func newRequest() once.ClaimRequest {
	id := random()
	return once.ClaimRequest{
		Fence: once.Fence{Key: once.Key{Scope: "tenant", Operation: "test", ID: fmt.Sprintf("%x", id[:8])}, Owner: random()},
		Lease: time.Minute,
	}
}

// newForeseen is newRequest for work that is known to end as done says.
func newForeseen() once.ClaimRequest {
	r, end := newRequest(), done(once.Record{}, "ok")
	r.Expected = &end
	return r
}

// newLast is newForeseen for work whose outcome is not known.
func newLast() once.ClaimRequest {
	r := newForeseen()
	r.Expected.Outcome = once.Outcome{}
	return r
}

// requests are by when their records are written.
var requests = map[string]func() once.ClaimRequest{"running": newRequest, "with the claim": newForeseen, "with the commit": newLast}

// eachRequest runs a test for each of requests.
func eachRequest(t *testing.T, test func(t *testing.T, newRequest func() once.ClaimRequest)) {
	for name, newRequest := range requests {
		t.Run(name, func(t *testing.T) { test(t, newRequest) })
	}
}

func done(rec once.Record, body string) once.Settlement {
	return once.Settlement{
		Fence:       once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt},
		Status:      once.Done,
		Outcome:     once.Outcome{Body: []byte(body), ContentType: "text/plain", Sum: 0xfedcba98},
		KeepOutcome: time.Hour,
		KeepKey:     2 * time.Hour,
	}
}

// transact runs a transaction for one request, and settles it as done.
func transact(ctx context.Context, s *pgstore.Store, r once.ClaimRequest, work func(pgx.Tx) error) (once.Record, error) {
	recs, err := s.Transact(ctx, []once.ClaimRequest{r}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		if err := work(tx); err != nil {
			return nil, err
		}
		return []once.Settlement{done(recs[0], "ok")}, nil
	})
	if err != nil {
		return once.Record{}, err
	}
	return recs[0], nil
}

func get(t testing.TB, s once.Store, k once.Key) once.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func wantStatus(t testing.TB, s once.Store, k once.Key, want once.Status) {
	t.Helper()
	if rec := get(t, s, k); rec.Status != want {
		t.Errorf("the record is %v, want %v", rec.Status, want)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func wantText(t testing.TB, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want an error with %q", err, part)
	}
}

// waitFor polls until a condition holds.
func waitFor(t testing.TB, holds func() bool) {
	t.Helper()
	testenv.Await(t, "the condition", holds)
}

// wire counts the round trips between a pool and its server. It can cut the
// connection at the next COMMIT.
type wire struct {
	trips   atomic.Int64
	lose    atomic.Int32 // loseRequest or loseReply: of the next COMMIT
	dialled atomic.Int64
}

const (
	loseRequest = iota + 1
	loseReply
)

func (w *wire) into(cfg *pgxpool.Config) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		w.dialled.Add(1)
		return &wireConn{Conn: conn, wire: w}, err
	}
}

type wireConn struct {
	net.Conn
	wire *wire

	mu    sync.Mutex
	wrote bool
	cut   bool
}

var errCut = errors.New("cut by the test")

func (c *wireConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.wrote = true
	if bytes.Contains(b, []byte("commit\x00")) {
		switch c.wire.lose.Swap(0) {
		case loseRequest:
			c.mu.Unlock()
			c.Close()
			return 0, errCut
		case loseReply:
			c.cut = true
		}
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock() // only now: the Read may have begun before the Write
	cut := c.cut
	if c.wrote && n > 0 {
		c.wrote = false
		c.wire.trips.Add(1)
	}
	c.mu.Unlock()
	if cut { // the server has answered, so it has committed
		c.Close()
		return 0, errCut
	}
	return n, err
}
