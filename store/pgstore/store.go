// Package pgstore is a store in PostgreSQL, through pgx. The record of a key
// commits together with the rows of its work.
//
// # What it implements
//
// A [Store] is a [once.TxStore] and a [once.Lister]. It also implements
// [store.Registry], [store.Positions], [store.TxShelf], [store.Outbox],
// [store.Bell], [store.Presence], [store.Reopener] and, without Options.Partition,
// [store.Archivable]. It keeps their contracts as long as it is connected to one
// writable primary that loses no commit: do not connect it to a replica, and do
// not set synchronous_commit=off.
//
// # Round trips
//
// The claim of a new key takes one round trip. In [once.DoTx] that is the round
// trip of BEGIN. The record is written once, as it is after the commit: with BEGIN
// if the work has only one outcome, as in an Operation[struct{}], and otherwise
// with COMMIT. A replay that is flagged as a redelivery takes one round trip and
// writes nothing. Any other takes two, and its ROLLBACK, until more than one in
// eight recent claims was lost: then the store reads first, in one more round trip
// for each new key.
//
// A transaction in flight on a key holds a lock that ends with it. Claims see the
// lock and do not wait: they return Running with LeaseLeft 0. Extend and Settle
// do wait, up to the end of ctx, for a transaction that has claimed their record.
//
// # Limits
//
// The store needs PostgreSQL 13 or newer, and has been tested with 15. The
// encoding of the database and client_encoding have to be UTF8, which Migrate and
// the first use check. Each claim of a transaction holds an advisory lock until
// the transaction ends. For thousands of claims at a time, raise
// max_locks_per_transaction.
//
// Under REPEATABLE READ and SERIALIZABLE a lost race is [once.ErrConflict] and
// costs its transaction. SERIALIZABLE also reports conflicts between keys that
// are only close together in the index.
//
// The lock of a key is a number of 64 bits. If two keys have the same number,
// each looks busy while the other is. A store that names the same tables in
// another way (one sets Schema, the other relies on the search_path) does not see
// the lock. It waits for the record, if that was written. Otherwise its work is
// entered as well, and one of the two is rolled back with [once.ErrConflict].
//
// # The transaction of a handler
//
// A handler must not end its transaction. Commit and Rollback return an error,
// also as SQL, and Begin begins a savepoint. A store without Options.Schema also
// refuses statements that change the search_path. If a handler ignores the error
// of a statement, nothing is committed, and the caller gets an error that says
// so.
//
// Conn returns the connection itself, and so do rows. What is sent there is part
// of the transaction as well, and nothing guards it. The record of a running claim
// is written first, which costs up to two round trips. While rows are open, and
// after a statement that failed, it cannot be written: then the connection is
// closed, and the error is [once.ErrInTx]. Savepoints cost a round trip, for the
// same record. If work ends the transaction there, what it wrote may be committed: its
// keys are parked, with [once.ErrParked]. A position cannot be parked; its error
// is [once.ErrLeaseLost]. The end is not noticed after a statement that failed.
//
// # Speculation
//
// Unless its operation is Speculative, a handler is called only after its claim
// was won. With Speculative, BEGIN and the claim are sent together with the first
// statement of the handler, if that is a SELECT, INSERT, UPDATE, DELETE, MERGE,
// WITH or VALUES sent by Exec, Query or QueryRow. Before anything else they are
// sent by themselves. A tracer of pgx sees a batch.
//
// The handler of a duplicate may then be called. Its first statement fails with
// an unexported error, and no other statement is run. If two claims are sent at
// the same moment, the handler that loses may also see the rows of the winner; it
// is rolled back at its end. In both cases nothing that it wrote stays, and what
// it returns or panics with is ignored.
//
// A duplicate that is not flagged as a redelivery leaves an ERROR in the server's
// log, and costs more than the one statement of work that it prevents. If more
// than one in eight recent claims was lost, the store looks for a record first.
//
// # Positions and the shelf
//
// TransactAt adds two round trips to those of its work, and one statement, which
// moves the position. A call that meets a transaction in flight on its position
// waits for up to about ten seconds, and then returns [once.ErrConflict]. If the
// handler of TransactAt calls Conn, the commit checks once more that it ends the
// transaction that moved the position.
//
// Consumers have tables of their own. Until Migrate has created them, the methods
// that need them return [once.ErrInvalid], and all others work. A role without
// DDL needs rights on them.
//
// # The outbox
//
// Messages that PutTx puts in a transaction of DoTx, Transact or TransactAt are
// sent together with COMMIT. A message costs a row and no round trip. Triggers on
// the table run at that time. Functions of the database that use the table by
// themselves run before the messages are inserted. Statements that name the
// table, and everything after a savepoint, run after it. When 1,000 messages or
// 1 MiB of bodies are pending, they are sent before COMMIT.
//
// In a transaction that the caller began, PutTx sends one statement.
// [Store.QueueOutbox] queues that statement in a batch, for example the batch
// with COMMIT.
//
// Relays in the same process are told at once. Those in other processes are told
// by NOTIFY, on a channel with the name of the table and its schema, as in LISTEN
// "public.once_outbox". The NOTIFY is sent a few milliseconds after a commit,
// never in a transaction that puts, at most every 5 ms, and only if a connection
// of the pool is idle. A program that inserts rows without this package may send
// it too, with any payload: docs/outbox-row.md has the SQL, also for names that
// are too long for a channel. Each relay has two connections besides the pool: one
// that listens, and one whose lock shows that its process runs. If the process ends,
// others have its lanes within three seconds.
//
// The query that relays repeat takes one round trip, and its plan is bound to the
// index. Marking messages as sent does not wait for the disk.
//
// # PgBouncer
//
// The store keeps nothing in a session, so it works with PgBouncer in transaction
// mode. The exceptions are HearOutbox, which finds that no NOTIFY arrives, so relays
// poll instead, and AppearRelay: the lanes of a dead relay are free when its leases
// lapse. PgBouncer supports prepared statements since 1.21. Before that,
// set DefaultQueryExecMode of the pool to pgx.QueryExecModeExec, CacheDescribe or
// SimpleProtocol. Without a pooler, all modes work.
//
// # Compatibility
//
// The compatibility promise of package once applies. The tables are those of
// store/sqlstore, so both can use one database at the same time, without
// Options.Partition. A build works with the tables of a newer one if those say
// so, and refuses others. Once [Store.Migrate] or the SQL of [Schema] has created
// the tables, a role needs SELECT, INSERT, UPDATE and DELETE. Forget with
// Options.Partition needs the owner.
package pgstore

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/consuming"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options configures a [Store]. The zero value is valid.
type Options struct {
	once.Options

	// Schema is the schema of the tables. Default: the first of the
	// connection's search_path.
	Schema string

	// Prefix begins the names of tables and indexes. It may contain letters,
	// digits and underscores. Default "once_".
	Prefix string

	// Isolation is the isolation level of the transactions of DoTx. Default:
	// the connection's default_transaction_isolation.
	Isolation pgx.TxIsoLevel

	// Partition, if not 0, is for how long a partition of the table takes new
	// keys. Forget then drops partitions instead of deleting records. Choose it
	// before Migrate or Schema creates the tables; its length may be changed at
	// any time. See docs/partitions.md for when it is worth its cost.
	Partition time.Duration

	// PartitionWait bounds for how long Forget may block all claims when it
	// adds or drops a partition, which waits for the end of transactions in
	// flight. If it is shorter than they usually take, Forget never succeeds.
	// Default 50 ms.
	PartitionWait time.Duration

	// Outbox is where relays find messages. It has to be the same in all
	// processes: see docs/outbox-log.md. Default OutboxTable.
	Outbox OutboxMode

	// Slot names the replication slot and the publication of the log modes. It
	// may contain lower-case letters, digits and underscores. Default: a name
	// made of the prefix, the schema and the database.
	Slot string

	// SlotServer is the connection string of the reader of the log. It is
	// needed if the pool connects to PgBouncer, which does not support
	// replication. Default: the settings of the pool.
	SlotServer string
}

// Store is a store in a PostgreSQL database. The types that it embeds implement
// what all SQL stores have in common.
type Store struct {
	consuming.Registry      // Register, Consumers
	consuming.PositionTable // OpenPosition, SetPosition, Positions
	consuming.Shelf[pgx.Tx] // Shelve, Shelved, BlockedTx, Change and so on
	publishing.HandingOver  // HandOver
	publishing.Outbox       // LeaseLanes, Outgoing, MoveOutgoing and so on

	pool    *pgxpool.Pool
	options *once.Options
	invalid error // of the options: every method returns it

	names     sqlschema.Names
	qualified bool // the names of the tables have a schema
	layout    layout
	checked   atomic.Bool // the tables were found to be right

	begin       string
	records     recordTable
	sql         statements
	batcher     *claimBatcher
	losses      lossRates
	deallocated atomic.Bool // some work has deallocated prepared statements

	consumers   *consuming.Tables
	outbox      *publishing.Tables
	shared      *records.Statements // on records, with other SQL stores
	outboxTable string              // its name without the schema, in lower case
	notifier    *notifier
	log         *outboxlog.Log
}

var (
	_ once.TxStore[pgx.Tx] = (*Store)(nil)
	_ once.Lister          = (*Store)(nil)

	_ store.Registry          = (*Store)(nil)
	_ store.RegistryEditor    = (*Store)(nil)
	_ store.Positions[pgx.Tx] = (*Store)(nil)
	_ store.TxShelf[pgx.Tx]   = (*Store)(nil)
	_ store.Outbox[pgx.Tx]    = (*Store)(nil)
	_ store.HandOver          = (*Store)(nil)
	_ store.Bell              = (*Store)(nil)
	_ store.Presence          = (*Store)(nil)
	_ store.Archivable        = (*Store)(nil)
	_ store.Reopener          = (*Store)(nil)
)

// New returns a store that uses pool, which the caller closes. If o is nil, the
// defaults apply. If the options are invalid, every method returns
// [once.ErrInvalid].
func New(pool *pgxpool.Pool, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	s := &Store{pool: pool, qualified: o.Schema != "", options: o.Ready()}
	s.names, s.invalid = names(o)
	s.names = s.names.WithSecret(o.Secret)
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
		s.records, s.invalid = newRecordTable(s, o)
	}
	if s.invalid == nil {
		s.log, s.invalid = outboxlog.New(pool, s.names, s, outboxlog.Config{Mode: o.Outbox, Slot: o.Slot, Server: o.SlotServer})
	}
	if s.invalid == nil {
		s.layout, s.sql = layoutOf(s.names, o), s.records.statements()
		s.notifier = newNotifier(s)
		s.outboxTable = strings.ToLower(tableName(s.names.Outbox()))
		s.batcher = &claimBatcher{store: s, maxSending: int(pool.Config().MaxConns)}
	}
	s.share()
	return s
}

// Options returns the options with which the store was created, and what its
// users share.
func (s *Store) Options() *once.Options { return s.options }
