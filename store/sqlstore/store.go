package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/consuming"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	PostgreSQL = Dialect(sqlschema.PostgreSQL)
	MySQL      = Dialect(sqlschema.MySQL) // and MariaDB
	SQLite     = Dialect(sqlschema.SQLite)
	SQLServer  = Dialect(sqlschema.SQLServer) // and Azure SQL; not yet tested on a server, see docs/stores/sqlserver.md
)

// Options configures a [Store]. The zero value is valid.
type Options struct {
	once.Options

	// Schema is the schema of the tables, in MySQL their database. The default
	// is that of the connection. SQLite has no schemas.
	Schema string

	// Prefix is what the names of tables and indexes begin with: letters,
	// digits and underscores. The default is "once_".
	Prefix string
}

// Store is a store in an SQL database. The types that it embeds implement what
// all SQL stores have in common.
type Store struct {
	consuming.Registry       // Register, Consumers
	consuming.PositionTable  // OpenPosition, SetPosition, Positions
	consuming.Shelf[*sql.Tx] // Shelve, Shelved, BlockedTx, Change and so on
	publishing.HandingOver   // HandOver
	publishing.Outbox        // LeaseLanes, Outgoing, MoveOutgoing and so on

	*database
	options   *once.Options
	consumers *consuming.Tables
	outbox    *publishing.Tables
	bell      bell
}

var (
	_ once.TxStore[*sql.Tx] = (*Store)(nil)
	_ once.Lister           = (*Store)(nil)

	_ store.Registry           = (*Store)(nil)
	_ store.RegistryEditor     = (*Store)(nil)
	_ store.Positions[*sql.Tx] = (*Store)(nil)
	_ store.TxShelf[*sql.Tx]   = (*Store)(nil)
	_ store.Outbox[*sql.Tx]    = (*Store)(nil)
	_ store.HandOver           = (*Store)(nil)
	_ store.Bell               = (*Store)(nil)
	_ store.Presence           = (*Store)(nil)
	_ store.Archivable         = (*Store)(nil)
	_ store.Reopener           = (*Store)(nil)
)

// New returns a store that uses pool. The caller closes pool. A nil Options
// means the defaults. If an argument is invalid, every method returns
// [once.ErrInvalid].
func New(pool *sql.DB, dialect Dialect, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	d := &database{pool: pool, dialect: sqlschema.Dialect(dialect)}
	d.names, d.invalid = names(dialect, o)
	d.names = d.names.WithSecret(o.Secret)
	if pool == nil {
		d.invalid = fmt.Errorf("%w: the *sql.DB is nil", once.ErrInvalid)
	}
	d.sql, d.queue, d.prepared = records.New(d.names), newQueue(d.dialect), preparedOf(pool, d.dialect)
	shelved, put := consuming.NewTables(d.names), publishing.NewTables(d.names)
	return &Store{
		Registry:      consuming.NewRegistry(shelved, access{d}),
		PositionTable: consuming.NewPositionTable(shelved, access{d}),
		Shelf:         consuming.NewShelf(shelved, access{d}),
		HandingOver:   publishing.NewHandingOver(put, access{d}, shelved.Shelve),
		Outbox:        publishing.NewOutbox(put, access{d}),
		database:      d,
		options:       o.Ready(),
		consumers:     shelved,
		outbox:        put,
	}
}

func names(d Dialect, o *Options) (sqlschema.Names, error) {
	n, err := sqlschema.For(sqlschema.Dialect(d), o.Schema, o.Prefix)
	if err != nil {
		err = fmt.Errorf("%w: %w", once.ErrInvalid, err)
	}
	return n, err
}

// Options returns the options of the store.
func (s *Store) Options() *once.Options { return s.options }

// Schema returns the SQL with which [Store.Migrate] would upgrade tables of
// version from, or create them if from is 0. Use it where a database
// administrator changes the tables. The only errors are names that New refuses.
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

// Migrate creates the tables, or upgrades them to the version that this build
// needs. It changes nothing if they have that version. Any number of processes
// may call it at once, for example when they start. It may be interrupted and
// repeated. It returns [once.ErrInvalid] if a newer build has upgraded the
// tables to a version that this build cannot use.
func (s *Store) Migrate(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	ctx, cancel := context.WithTimeout(ctx, migrateTime)
	defer cancel()
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: time.Second}
	for {
		err := s.explain(s.migrate(ctx))
		if !errors.Is(err, once.ErrConflict) || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

func (s *Store) migrate(ctx context.Context) error {
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	conn, err := s.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = s.names.Migrate(ctx, sqltx.Querier{DB: conn})
	if err != nil && s.dialect != sqlschema.SQLite { // a database in memory ends with its connection
		sqltx.Discard(conn)
	}
	return err
}

// Get returns the record of a key as it is now.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	r, err := s.get(ctx, s.pool, s.sql.Get, k)
	return r.Seen(), err
}

// GetMany is Get for each key, in their order. It sends a statement for 16 of
// them.
func (s *Store) GetMany(ctx context.Context, keys []once.Key) ([]once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	recs := make([]once.Record, len(keys))
	for from := 0; from < len(keys); from += records.ManyKeys {
		some := keys[from:min(from+records.ManyKeys, len(keys))]
		p := make(sqlschema.Params, records.ManyKeys)
		for i := range records.ManyKeys { // the statement always has as many
			p[fmt.Sprint("key", i)] = s.names.UUID(some[min(i, len(some)-1)].UUID())
		}
		rows, err := s.rows(ctx, s.pool, s.sql.GetMany, p)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			rec := row.Seen()
			for i, k := range some {
				if k == row.Key {
					recs[from+i] = rec
				}
			}
		}
	}
	return recs, nil
}
