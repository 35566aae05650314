// Package pgstore remembers keys in PostgreSQL, through pgx: the record of a key commits with the rows of its work.
//
// # Promise
//
// It keeps every rule of [once.TxStore], [once.Lister], [store.Registry], [store.Positions], [store.TxShelf],
// [store.Outbox], [store.Bell], [store.Reopener] and, without Options.Partition, [store.Archivable], as long as it talks
// to one writable primary that loses no commit: never give it a replica, or synchronous_commit=off. The claim of a new
// key is one round trip. In [once.DoTx] that is the round trip of BEGIN, and the record travels with COMMIT. A replay that is flagged as a redelivery is one, and writes nothing. A transaction in flight on a key is
// seen, by a lock that ends with it, and not waited for: the claim returns Running with LeaseLeft 0. Extend and Settle
// wait for one that has taken their record over, up to ctx.
//
// # Limits
//
// PostgreSQL 13 or newer, in UTF8, and so client_encoding, which Migrate and the first use check; 15 was tried. Each claim of a transaction holds an advisory lock until it ends:
// for thousands of claims at a time, raise max_locks_per_transaction. Under REPEATABLE READ and SERIALIZABLE a lost
// race is [once.ErrConflict] and costs its transaction; SERIALIZABLE also sees conflicts between keys that only lie
// close together. The lock is a number of 64 bits: should two keys share one, each looks busy while the other is. A
// store that names the same tables in another way (Schema set, or left to the search_path) does not see the lock, and
// waits.
//
// # The transaction of a handler
//
// Commit and Rollback are refused, also as SQL, and Begin is a savepoint. Conn is the connection itself: what is sent
// there is part of the transaction as well, and nothing guards it. Work that ends the transaction there has its keys
// parked, with [once.ErrParked], because what it wrote may be committed; a position cannot be parked, and is
// [once.ErrLeaseLost]. It is not noticed after a statement that failed. The first use of Conn costs a round trip. A store without Options.Schema refuses to have its
// search_path changed. A handler that passes over the error of a statement commits nothing, and gets an error that
// says so.
//
// # Speculation
//
// The handler of an operation that is not Speculative is entered only after its claim is won. Speculation sends BEGIN and
// the claim together with the first statement of the handler, if that is a SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or
// VALUES sent by Exec, Query or QueryRow, and alone before anything else. A tracer of pgx sees a batch of them.
//
// The handler of a duplicate may then be entered. Its first statement fails with an unexported error, and no other
// statement is run. One that claims at the same moment as another can also see the rows of the first, and is rolled back at
// its end. Either way nothing of it stays, and what it returns or panics with is ignored. A duplicate that is not
// flagged as a redelivery leaves an ERROR in the server's log, and costs more than the work of one statement that it
// prevents, unless more than one claim in eight was lost lately: then the store looks first.
//
// # Positions and the shelf
//
// TransactAt adds two round trips to those of its work, and no other statement than the one that moves the position.
// What meets a transaction in flight on a position waits for it, about ten seconds at most, and is [once.ErrConflict]
// then. A handler of TransactAt that asks for Conn makes the commit look once more whether the transaction is still
// its own. The tables for consumers are apart from that of keys: until Migrate has made them, only the methods that
// need them fail, with [once.ErrInvalid], and a role without DDL has to be given rights on them.
//
// # The outbox
//
// What PutTx gets in a transaction of DoTx, Transact or TransactAt travels with COMMIT: it costs a row, and no round
// trip. A trigger on the table runs then, and what a function of the database reads or writes there by itself comes
// before it; a statement that names the table, and anything behind a savepoint, comes behind it. In a transaction of
// the caller's own, PutTx is one statement, and [Store.QueueOutbox] puts that into a batch, for example the one with
// COMMIT. When 1,000 messages, or 1 MiB of bodies, are waiting for COMMIT, they are sent earlier.
//
// Relays in this process are told at once. Those elsewhere are told by NOTIFY on a channel with the name of the table
// and its schema, as in LISTEN "public.once_outbox": a few milliseconds after a commit, never in a transaction that
// puts, at most every 5 ms, and only if a connection of the pool is free. Whoever inserts rows without this package
// may do the same, with any payload: docs/outbox-row.md has the SQL, also for names that are too long for a channel.
// Each ear has a connection of its own beside the pool.
//
// What relays ask all the time is one round trip, whose plan is bound to the index for that transaction. Sent
// waits for no disk.
//
// # PgBouncer
//
// Nothing is kept in a session, so transaction mode is fine, but for HearOutbox: it finds out that it hears nothing
// there, and relays ask instead. Before PgBouncer 1.21, which learned of prepared statements, set
// DefaultQueryExecMode of the pool to pgx.QueryExecModeExec, CacheDescribe or SimpleProtocol. Without a pooler, all
// modes work.
//
// # Compatibility
//
// That of package once. The tables are those of store/sqlstore, so both can be used on one database at once, without
// Options.Partition. A build works with the tables of any newer one that says so, and refuses others. A role that may
// SELECT, INSERT, UPDATE and DELETE is enough (Forget of partitions needs the owner), once [Store.Migrate] or the SQL
// of [Schema] has made the tables.
package pgstore

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the options of a [Store]. The zero value works.
type Options struct {
	once.Options
	Schema    string         // of the tables; default: the first of the connection's search_path
	Prefix    string         // of the names of tables and indexes; letters, digits and underscores; default "once_"
	Isolation pgx.TxIsoLevel // of the transactions of DoTx; default: the connection's default_transaction_isolation

	// Partition, if it is not 0, is how long a partition of the table takes new keys: then Forget drops partitions
	// instead of deleting records. It is chosen when the tables are made, by Migrate or Schema; its length may be
	// changed at any time. See docs/partitions.md for when it is worth its price.
	Partition time.Duration

	// PartitionWait is how long Forget may hold up all claims when it adds or drops a partition, which waits for the
	// end of transactions in flight. Default 50 ms; with less time than they usually take, it never succeeds.
	PartitionWait time.Duration

	// Outbox is where relays find what is put, and the same in all processes: see docs/outbox-log.md. Default
	// OutboxTable.
	Outbox OutboxMode

	// Slot names the replication slot and the publication of the log modes: lower-case letters, digits and underscores.
	// Default: a name made of the prefix, the schema and the database.
	Slot string

	// SlotServer is the connection string of the reader of the log, where the pool goes through PgBouncer, which
	// cannot carry that. Default: like the pool.
	SlotServer string
}

// Store is a store in a PostgreSQL database.
type Store struct {
	pool    *pgxpool.Pool
	options *once.Options
	names   sqlschema.Names
	layout  layout
	sql     statements
	begin   string
	claimer *claimer
	losses  lossRate
	named   bool // the tables have a schema

	partition *partitioned // nil: one table

	invalid error
	checked atomic.Bool // the tables were found to be right

	consumers   *consumers
	outbox      *outbox
	outboxTable string // its name without the schema, in lower case
	bell        *bell

	log outboxLog
}

var (
	_ once.TxStore[pgx.Tx] = (*Store)(nil)
	_ once.Lister          = (*Store)(nil)

	_ store.Registry          = (*Store)(nil)
	_ store.Positions[pgx.Tx] = (*Store)(nil)
	_ store.TxShelf[pgx.Tx]   = (*Store)(nil)
	_ store.Outbox[pgx.Tx]    = (*Store)(nil)
	_ store.Bell              = (*Store)(nil)
	_ store.Archivable        = (*Store)(nil)
	_ store.Reopener          = (*Store)(nil)
)

// New returns a store that uses pool, which stays the caller's to close. A nil Options means the defaults.
// What is wrong with the options is what every method returns, as [once.ErrInvalid].
func New(pool *pgxpool.Pool, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	s := &Store{pool: pool, named: o.Schema != "", options: o.Ready()}
	s.names, s.invalid = names(o)
	switch o.Isolation {
	case "":
		s.begin = "begin"
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
		s.begin = "begin isolation level " + string(o.Isolation)
	default:
		s.invalid = fmt.Errorf("%w: the isolation level %q is none of %q, %q and %q", once.ErrInvalid, o.Isolation,
			pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
	}
	if pool == nil {
		s.invalid = fmt.Errorf("%w: the pool is nil", once.ErrInvalid)
	}
	if s.invalid == nil {
		s.partition, s.invalid = newPartitioned(s.names, o)
	}
	if s.invalid == nil {
		s.invalid = s.log.init(o)
	}
	if s.invalid == nil {
		s.consumers = consuming.New(s.names)
		s.layout, s.sql = layoutOf(s.names, o), newStatements(s.names, wholeMarks())
		if s.partition != nil {
			s.sql = s.partition.statements()
		}
		s.outbox, s.bell = newOutbox(s.names), newBell(s)
		s.outboxTable = strings.ToLower(tableName(s.names.Outbox()))
		s.claimer = &claimer{store: s, width: int(pool.Config().MaxConns)}
	}
	return s
}

// Options returns the options that the store was made with, and what its users share.
func (s *Store) Options() *once.Options { return s.options }
