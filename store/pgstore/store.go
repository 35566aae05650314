// Package pgstore remembers keys in PostgreSQL, through pgx: the record of a key commits with the rows of its work.
//
// It promises all that [once.TxStore] asks for, as long as it talks to the one writable primary: never give it a
// replica. A claim is one round trip, so is a replay, which writes nothing. A transaction in flight on a key
// is seen, by a lock that lasts as long as the transaction, and never waited for on a connection: the claim
// returns Running with LeaseLeft 0. Two keys in 2^64 share a lock; then one of them looks busy while the other is.
// Extend and Settle wait for a transaction that has taken their record over, as long as their context lets them.
//
// Limits: PostgreSQL 12 or newer, in UTF8. Under REPEATABLE READ and SERIALIZABLE a lost race is a
// serialization error, which comes back as [once.ErrConflict] and costs its transaction.
//
// It works through PgBouncer in transaction mode: it keeps nothing in a session. PgBouncer before 1.21 knows no prepared
// statements, so set DefaultQueryExecMode of the pool to pgx.QueryExecModeExec, CacheDescribe or SimpleProtocol;
// all modes work without a pooler.
//
// A pgxpool with a RuntimeParams of "default_transaction_isolation" decides the isolation of Transact.
//
// The tables are those of store/sqlstore, so both can be used on one database at once. A version of this package works
// with the tables of any newer one that says so, and refuses others; see [Store.Migrate].
// The compatibility of its API is that of package once.
package pgstore

import (
	"fmt"
	"sync/atomic"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the options of a [Store]. The zero value works.
type Options struct {
	once.Options
	Schema string // of the tables; default: the first of the connection's search_path
	Prefix string // of the names of tables and indexes; letters, digits and underscores; default "once_"
}

// Store is a store in a PostgreSQL database.
type Store struct {
	pool    *pgxpool.Pool
	options *once.Options
	names   sqlschema.Names
	sql     statements
	invalid error
	checked atomic.Bool // the tables were found to be right
}

var (
	_ once.TxStore[pgx.Tx] = (*Store)(nil)
	_ once.Lister          = (*Store)(nil)
)

// New returns a store that uses pool, which stays the caller's to close. A nil Options means the defaults.
// What is wrong with the options is what every method returns, as [once.ErrInvalid].
func New(pool *pgxpool.Pool, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	s := &Store{pool: pool, options: o.Ready()}
	s.names, s.invalid = names(o)
	if pool == nil {
		s.invalid = fmt.Errorf("%w: the pool is nil", once.ErrInvalid)
	}
	if s.invalid == nil {
		s.sql = newStatements(s.names)
	}
	return s
}

// Options returns the options that the store was made with, and what its users share.
func (s *Store) Options() *once.Options { return s.options }
