package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/internal/sqlschema/publishing"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
	"github.com/effectively-once/once/store"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	PostgreSQL = Dialect(sqlschema.PostgreSQL)
	MySQL      = Dialect(sqlschema.MySQL) // and MariaDB
	SQLite     = Dialect(sqlschema.SQLite)
	SQLServer  = Dialect(sqlschema.SQLServer) // and Azure SQL; no server has been run with it, see docs/stores/sqlserver.md
)

// Options are the options of a [Store]. The zero value works.
type Options struct {
	once.Options
	Schema string // of the tables: a schema, in MySQL a database; default: the connection's own
	Prefix string // of the names of tables and indexes; letters, digits and underscores; default "once_"
}

// Store is a store in an SQL database.
type Store struct {
	db      *sql.DB
	dialect sqlschema.Dialect
	options *once.Options
	names   sqlschema.Names
	sql     *sqlschema.Statements
	invalid error
	checked atomic.Bool // the tables were found to be right

	consumers *consumers
	outbox    *outbox
	bell      bell

	queue queue // of the writers; nil: the database has one
}

var (
	_ once.TxStore[*sql.Tx] = (*Store)(nil)
	_ once.Lister           = (*Store)(nil)

	_ store.Registry           = (*Store)(nil)
	_ store.Positions[*sql.Tx] = (*Store)(nil)
	_ store.TxShelf[*sql.Tx]   = (*Store)(nil)
	_ store.Outbox[*sql.Tx]    = (*Store)(nil)
	_ store.Bell               = (*Store)(nil)
	_ store.Archivable         = (*Store)(nil)
	_ store.Reopener           = (*Store)(nil)
)

// New returns a store that uses db, which stays the caller's to close. A nil Options means the defaults.
// What is wrong with the arguments is what every method returns, as [once.ErrInvalid].
func New(db *sql.DB, d Dialect, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	s := &Store{db: db, dialect: sqlschema.Dialect(d), options: o.Ready()}
	s.names, s.invalid = names(d, o)
	s.queue = newQueue(s.dialect)
	if db == nil {
		s.invalid = fmt.Errorf("%w: the *sql.DB is nil", once.ErrInvalid)
	}
	if s.invalid == nil {
		s.sql, s.consumers = s.names.Statements(), consuming.New(s.names)
		s.outbox = publishing.New(s.names)
	}
	return s
}

func names(d Dialect, o *Options) (sqlschema.Names, error) {
	n, err := sqlschema.For(sqlschema.Dialect(d), o.Schema, o.Prefix)
	if err != nil {
		err = fmt.Errorf("%w: %w", once.ErrInvalid, err)
	}
	return n, err
}

// Options returns the options that the store was made with, and what its users share.
func (s *Store) Options() *once.Options { return s.options }

// Schema returns the SQL that [Store.Migrate] would run on tables of the version from, 0 for none: for those
// whose databases are changed by hand. Only names that New would refuse are an error.
func Schema(d Dialect, o *Options, from int) (string, error) {
	if o == nil {
		o = new(Options)
	}
	n, err := names(d, o)
	if err != nil {
		return "", err
	}
	return n.Print(from), nil
}

const migrateTime = time.Minute

// Migrate makes the tables, or leads them to the version that this build needs; where they are right, it changes
// nothing. Any number of processes may call it at once, for example at their start. It may be interrupted
// and repeated. [once.ErrInvalid]: the tables are of a newer build that this one cannot work with.
func (s *Store) Migrate(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	ctx, cancel := context.WithTimeout(ctx, migrateTime)
	defer cancel()
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: time.Second}
	for {
		err := s.fail(s.migrate(ctx))
		if !errors.Is(err, once.ErrConflict) || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

func (s *Store) migrate(ctx context.Context) error {
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = s.names.Migrate(ctx, sqltx.Executor{Querier: conn})
	if err != nil && s.dialect != sqlschema.SQLite { // whose connection may be the whole database
		sqltx.Discard(conn)
	}
	return err
}

// ready checks the tables, and the settings of the connection, at the first use, through the connection at hand: it may be the only one.
func (s *Store) ready(ctx context.Context, q sqltx.Querier) error {
	if s.invalid != nil || s.checked.Load() {
		return s.invalid
	}
	x := sqltx.Executor{Querier: q}
	err := s.names.Check(ctx, x)
	if err == nil {
		err = s.names.CheckSession(ctx, x)
	}
	if err != nil {
		return s.fail(err)
	}
	s.checked.Store(true)
	return nil
}

// readyTx is ready for a transaction of the caller's.
func (s *Store) readyTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the *sql.Tx is nil", once.ErrInvalid)
	}
	return s.ready(ctx, tx)
}

// Get returns the record of a key as it is now.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return once.Record{}, err
	}
	r, err := s.get(ctx, s.db, s.sql.Get, k)
	return r.record(), err
}

// get is the zero row for a key that was never seen, or is forgotten.
func (s *Store) get(ctx context.Context, q sqltx.Querier, st sqlschema.Statement, k once.Key) (row, error) {
	rows, err := s.rows(ctx, q, st, sqlschema.Params{"key": s.names.UUID(k.UUID())})
	if err != nil || len(rows) == 0 {
		return row{}, err
	}
	return rows[0], nil
}

func (s *Store) exec(ctx context.Context, q sqltx.Querier, st sqlschema.Statement, p sqlschema.Params) (changed int64, err error) {
	result, err := q.ExecContext(ctx, st.Text, st.Args(p)...)
	if err != nil {
		return 0, s.fail(err)
	}
	return result.RowsAffected()
}

func (s *Store) rows(ctx context.Context, q sqltx.Querier, st sqlschema.Statement, p sqlschema.Params) (found []row, err error) {
	rows, err := q.QueryContext(ctx, st.Text, st.Args(p)...)
	if err != nil {
		return nil, s.fail(err)
	}
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() { // a claim in SQL Server may have to begin its answer anew
		for rows.Next() {
			r, err := readRow(rows)
			if err != nil {
				return nil, err
			}
			found = append(found, r)
		}
	}
	return found, s.fail(rows.Err())
}
