package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectively-once/once/internal/testenv"
)

const (
	accounts    = 100_000
	databaseURL = "/once_bench" // of a database that every stage creates
	connections = 40            // more than workers, so that no worker waits for one
	addedTrip   = 500 * time.Microsecond
)

var errNoServer = errors.New(`there is no server for it: "make bench" starts one`)

// setting selects the disk and the network of a stage's PostgreSQL.
type setting struct {
	name  string
	model bool // each commit takes 1 ms, with group commit, as on a cloud volume
	away  bool // adds half a millisecond to each round trip
}

func settings() []setting {
	return []setting{
		{name: "fast disk"},
		{name: "model disk", model: true},
		{name: "fast disk, RTT +0.5 ms", away: true},
		{name: "model disk, RTT +0.5 ms", model: true, away: true},
	}
}

// postgres is a database of its own on the server that was started for tests.
type postgres struct {
	dsn   string
	pool  *pgxpool.Pool
	std   *sql.DB
	delay *delay // nil: none
	admin *pgx.Conn
}

// openPostgres creates the database with a table of accounts, and notes the
// duration of a round trip and a commit.
func openPostgres(ctx context.Context, b *bench, s setting) (*postgres, error) {
	address := os.Getenv(testenv.PostgresVar)
	if address == "" {
		return nil, errNoServer
	}
	admin, err := connectChecked(ctx, address)
	if err != nil {
		return nil, err
	}
	p := &postgres{admin: admin}
	if err := p.open(ctx, b, address, s); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *postgres) open(ctx context.Context, b *bench, address string, s setting) (err error) {
	if err := p.create(ctx); err != nil {
		return err
	}
	if p.dsn, err = p.route(address, s); err != nil {
		return err
	}
	if err := p.connect(ctx); err != nil {
		return err
	}
	return p.noteTimes(ctx, b, s)
}

// connectChecked refuses servers that were not started for tests.
func connectChecked(ctx context.Context, address string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := checkPostgres(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

func checkPostgres(ctx context.Context, conn *pgx.Conn) error {
	var directory string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&directory); err != nil {
		return err
	}
	return checkDirectory(testenv.PostgresVar, directory, testenv.PostgresDataVar)
}

func checkDirectory(addressVar, got, wantVar string) error {
	if want := os.Getenv(wantVar); want == "" || filepath.Clean(got) != filepath.Clean(want) {
		return fmt.Errorf("%s names a server in %q, and %s says %q: it was not started for tests, nothing was changed on it",
			addressVar, got, wantVar, want)
	}
	return nil
}

func (p *postgres) create(ctx context.Context) error {
	for _, statement := range []string{"DROP DATABASE IF EXISTS once_bench WITH (FORCE)", "CREATE DATABASE once_bench"} {
		if _, err := p.admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// route returns the address of the database for a setting. Its commit settings
// apply to the connections that use it; the configuration of the server stays
// as it is.
func (p *postgres) route(address string, s setting) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if s.away {
		if p.delay, err = startDelay(u.Host, addedTrip/2); err != nil {
			return "", err
		}
		u.Host = p.delay.address()
	}
	u.Path = databaseURL
	if s.model {
		q := u.Query()
		q.Set("commit_delay", "1000")
		q.Set("commit_siblings", "0")
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

func (p *postgres) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(p.dsn)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	p.std = stdlib.OpenDB(*config.ConnConfig)
	p.std.SetMaxOpenConns(connections)
	p.std.SetMaxIdleConns(connections)
	for _, statement := range []string{
		`CREATE SCHEMA once`,
		`CREATE TABLE account (id int PRIMARY KEY, bal bigint NOT NULL)`,
		fmt.Sprintf(`INSERT INTO account SELECT i, 0 FROM generate_series(0, %d) i`, accounts-1),
		`VACUUM ANALYZE account`,
		`CHECKPOINT`,
	} {
		if _, err := p.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// calibrate subtracts the proxy's own latency from the delay.
func (p *postgres) calibrate(ctx context.Context) error {
	if p.delay == nil {
		return nil
	}
	direct, err := typical(func() error { return p.admin.Ping(ctx) })
	if err != nil {
		return err
	}
	through, err := typical(func() error { return p.pool.Ping(ctx) })
	p.delay.by.Add(int64(addedTrip-(through-direct)) / 2)
	return err
}

// noteTimes measures round trips and commits.
func (p *postgres) noteTimes(ctx context.Context, b *bench, s setting) error {
	if err := p.calibrate(ctx); err != nil {
		return err
	}
	trip, err := typical(func() error { return p.pool.Ping(ctx) })
	if err != nil {
		return err
	}
	commit, err := typical(func() error {
		_, err := p.pool.Exec(ctx, `UPDATE account SET bal = bal + 1 WHERE id = $1`, rand.IntN(accounts))
		return err
	})
	if err != nil {
		return err
	}
	b.report.note("PostgreSQL, %s: a round trip takes %.3f ms, an UPDATE that commits by itself %.3f ms (1 worker, medians)",
		s.name, milliseconds(trip), milliseconds(commit))
	return nil
}

// typical returns the median duration of many sequential calls.
func typical(call func() error) (time.Duration, error) {
	const calls = 200
	took := make([]time.Duration, calls)
	for i := range took {
		begun := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return took[calls/2], nil
}

// close also cleans up after a partial openPostgres.
func (p *postgres) close() {
	if p.std != nil {
		_ = p.std.Close()
	}
	if p.pool != nil {
		p.pool.Close()
	}
	if p.delay != nil {
		p.delay.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The database belongs to the benchmark, and the server ends soon. The next
	// stage drops it.
	_, _ = p.admin.Exec(ctx, "DROP DATABASE IF EXISTS once_bench WITH (FORCE)")
	_ = p.admin.Close(ctx)
}
