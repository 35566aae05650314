// Package outboxlog keeps an outbox in PostgreSQL's log: it reads committed
// messages by logical replication, in the order of commits, and can write
// messages to the log without a row.
//
// # What it does
//
// A [Log] belongs to one outbox table. [Log.Tail] creates the replication slot
// and its publication where they are missing, and returns a reader. The reader
// first returns the rows that were pending when the slot was created, and then
// what the slot delivers. [Log.EmitCalls] returns the statements that write
// messages to the log as part of a transaction. [Log.Reset] drops the slot.
//
// # What it needs
//
// A pool of at least two connections, a role with REPLICATION, wal_level =
// logical, and a table of the outbox, through [Rows].
//
// # What it promises
//
// Every message that was committed while the slot existed is delivered until
// it is reported as sent or set aside, even if the reader or the server stops in
// between. One process reads a slot at a time. A slot that was lost together
// with messages that had no row is reported as [ErrSlotLost] until Reset.
//
// A comment on the publication records how far the slot has been set up: see
// mark. Writers and readers of all modes go by it, so that processes in
// different modes can run at the same time.
package outboxlog

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Mode is where relays find messages.
type Mode int

const (
	Table     Mode = iota // in the table
	RowsByLog             // in the table, and the log says in which order
	LogOnly               // in the log
)

// ErrSlotLost is returned when a replication slot that held messages without
// rows is gone or can no longer be read.
var ErrSlotLost = errors.New("once: the replication slot of the outbox is lost")

// Config says how a [Log] is used.
type Config struct {
	Mode   Mode
	Slot   string // the name of the slot and of the publication; default: derived from the table and the database
	Server string // the connection string of the reader; default: the pool's
}

// Rows is the outbox table, as the reader uses it.
type Rows interface {
	Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error)
	Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error)
	MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error)
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Log is the log of one outbox table.
type Log struct {
	mode   Mode
	slot   string         // "": derived
	server *pgconn.Config // nil: the pool's
	pool   *pgxpool.Pool
	schema sqlschema.Names
	rows   Rows

	checked atomic.Pointer[readySlot]
	inUse   atomic.Bool // in mode Table: the last look found that another process has the log read
}

// readySlot is the result of a check that found the slot ready.
type readySlot struct {
	names Names
	until time.Time // the check is repeated after this
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,60}$`) // PostgreSQL allows 63

// New returns the log of an outbox. It checks c and sends nothing.
func New(pool *pgxpool.Pool, schema sqlschema.Names, rows Rows, c Config) (*Log, error) {
	l := &Log{mode: c.Mode, slot: c.Slot, pool: pool, schema: schema, rows: rows}
	switch {
	case l.mode < Table || l.mode > LogOnly:
		return nil, fmt.Errorf("%w: Outbox %d is none of OutboxTable, OutboxRowsByLog and OutboxLogOnly", once.ErrInvalid, l.mode)
	case l.slot != "" && !slotName.MatchString(l.slot):
		return nil, fmt.Errorf("%w: the slot name %q has to consist of lower-case letters, digits and underscores, at most 60",
			once.ErrInvalid, l.slot)
	case c.Server == "":
		return l, nil
	}
	var err error
	if l.server, err = pgconn.ParseConfig(c.Server); err != nil {
		// The error quotes the text, which may contain a password.
		return nil, fmt.Errorf("%w: SlotServer is not a URL or a list of settings that pgx can read", once.ErrInvalid)
	}
	return l, nil
}

// LogOnly reports whether messages are written to the log only.
func (l *Log) LogOnly() bool { return l.mode == LogOnly }

// TableOnly reports whether this process leaves the log alone. Another process
// may have it read all the same: see [Log.CheckInUse].
func (l *Log) TableOnly() bool { return l.mode == Table }

// Names are the names that the reader and all writers of a log share.
type Names struct {
	table       string // as SQL, with its schema
	schema      string
	relation    string // the table without its schema
	publication string
	slot        string // unique in the server, across its databases
	prefix      string // of messages in the log
}

// Slot returns the name of the replication slot.
func (n Names) Slot() string { return n.slot }

// putLock is the advisory lock that transactions share that have written
// messages to the log.
func (n Names) putLock() int64 { return n.lock("put ") }

// markLock is the advisory lock for changes of the mark.
func (n Names) markLock() int64 { return n.lock("mark ") }

// readLock is the advisory lock that the reader holds as long as its session
// lasts: a slot that is still being created has no reader that the server
// shows.
func (n Names) readLock() int64 { return n.lock("") }

func (n Names) lock(purpose string) int64 {
	h := fnv.New64a()
	h.Write([]byte(purpose + n.slot))
	return int64(h.Sum64())
}

// Names asks the server where the table is, so that stores that name the same
// schema in different ways use the same slot.
func (l *Log) Names(ctx context.Context, q Querier) (n Names, err error) {
	var database int64
	err = q.QueryRow(ctx, `SELECT n.nspname, c.relname, d.oid::bigint FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_database d ON d.datname = current_database()
		WHERE c.oid = to_regclass($1)`, l.schema.Outbox()).Scan(&n.schema, &n.relation, &database)
	if errors.Is(err, pgx.ErrNoRows) {
		return n, fmt.Errorf("%w: there is no table %s: run Migrate", once.ErrInvalid, l.schema.Outbox())
	}
	if err != nil {
		return n, pgerr.Explain(err)
	}
	n.table = pgx.Identifier{n.schema, n.relation}.Sanitize()
	n.prefix = n.schema + "." + n.relation + contentVersion
	n.publication, n.slot = l.slot, l.slot
	if l.slot == "" {
		h := fnv.New32a()
		h.Write([]byte(n.prefix))
		// A publication belongs to a database and survives a dump and restore.
		// It is how a lost slot is noticed, so its name must not contain the
		// number of the database.
		n.publication = fmt.Sprintf("%s_%08x", strings.ToLower(n.relation), h.Sum32())
		n.slot = fmt.Sprintf("%s_%d", n.publication, database)
	}
	return n, nil
}

// InUse reports whether pending rows are delivered by the log. In mode Table it
// returns what the last look found.
func (l *Log) InUse() bool { return l.mode != Table || l.inUse.Load() }

// CheckInUse asks whether pending rows are delivered by the log. In mode Table
// that is so while processes in another mode have the log read.
func (l *Log) CheckInUse(ctx context.Context, q Querier) (inUse bool, err error) {
	if l.mode != Table {
		return true, nil
	}
	sql, args := l.InUseQuery()
	if err = q.QueryRow(ctx, sql, args...).Scan(&inUse); err == nil {
		l.SetInUse(inUse)
	}
	return inUse, pgerr.Explain(err)
}

// InUseQuery is the query of [Log.CheckInUse], for a batch. Its answer is for
// [Log.SetInUse].
func (l *Log) InUseQuery() (sql string, args []any) { return inUseSQL, []any{l.schema.Outbox()} }

// SetInUse records the answer to [Log.InUseQuery].
func (l *Log) SetInUse(inUse bool) { l.inUse.Store(inUse) }

// Tail opens a reader, which continues where the last one stopped. It creates
// the slot and the publication if they are missing. In mode Table it creates
// nothing: it reads what processes in another mode have created, and returns
// nil if there is nothing to read.
func (l *Log) Tail(ctx context.Context) (store.OutboxTail, error) {
	if l.mode == Table {
		if inUse, err := l.CheckInUse(ctx, l.pool); err != nil || !inUse {
			return nil, err
		}
	}
	if l.pool.Config().MaxConns < 2 {
		return nil, fmt.Errorf("%w: a reader of the log needs two connections, and the pool has one: raise MaxConns",
			once.ErrInvalid)
	}
	t, err := l.openTail(ctx)
	if err == nil {
		return t, nil
	}
	if !errors.Is(err, errNotInUse) {
		return nil, explain(err)
	}
	if inUse, err := l.CheckInUse(ctx, l.pool); err != nil || !inUse {
		return nil, err
	}
	return nil, fmt.Errorf("%w: the outbox is read through a slot of another name: Options.Slot has to be the same in all "+
		"processes", once.ErrInvalid)
}

func (l *Log) openTail(ctx context.Context) (*tail, error) {
	version, err := l.checkServer(ctx)
	if err != nil {
		return nil, err
	}
	names, err := l.Names(ctx, l.pool)
	if err != nil {
		return nil, err
	}
	conn, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	t := &tail{log: l, names: names, conn: conn, version: version}
	if err := t.open(ctx); err != nil {
		if conn.net == nil { // the end of the session releases the lock as well, but only some time after the connection is closed
			_, _ = conn.query(ctx, `SELECT pg_advisory_unlock_all()`)
		}
		t.abandon()
		return nil, err
	}
	return t, nil
}

// messagesVersion is the first version of PostgreSQL that delivers messages
// without rows.
const messagesVersion = 140000

// checkServer finds settings that would make a later command fail with a less
// helpful error.
func (l *Log) checkServer(ctx context.Context) (version int, err error) {
	var level string
	var replica bool
	err = l.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		pg_is_in_recovery()`).Scan(&version, &level, &replica)
	switch {
	case err != nil:
		return 0, err
	case replica:
		err = fmt.Errorf("%w: this server is a replica: the log is read from the primary", once.ErrInvalid)
	case level != "logical":
		err = fmt.Errorf("%w: wal_level is %s: set wal_level = logical in the configuration of PostgreSQL, for example by "+
			"ALTER SYSTEM SET wal_level = logical, and restart it", once.ErrInvalid, level)
	case version < messagesVersion && l.mode == LogOnly:
		err = fmt.Errorf("%w: OutboxLogOnly needs PostgreSQL 14 or newer, and this is %d: use OutboxRowsByLog",
			once.ErrInvalid, version/10000)
	}
	return version, err
}

// SQLSTATE codes of commands on a slot.
const slotInUse = "55006"

// explain is [pgerr.Explain] with what the errors of replication mean here.
func explain(err error) error {
	var refused sqlschema.Refusal
	switch pgerr.State(err) {
	case slotInUse:
		return fmt.Errorf("%w: another reader has the slot: %w", once.ErrConflict, err)
	case "42501", "28000": // insufficient privilege, invalid authorization
		return fmt.Errorf("%w: the role of the reader needs REPLICATION, and, for the first time, CREATE on the database and "+
			"to own the table of the outbox: %w", once.ErrInvalid, err)
	case "53400": // configuration limit exceeded
		return fmt.Errorf("%w: raise max_replication_slots, the reader needs one: %w", once.ErrInvalid, err)
	case "53300": // too many connections
		return fmt.Errorf("once: no connection for the reader of the log; its limit is max_wal_senders: %w", err)
	case "08P01": // protocol violation
		return fmt.Errorf("%w: the server accepts no connection for replication: if this is PgBouncer, set Options.SlotServer "+
			"to the server behind it: %w", once.ErrInvalid, err)
	}
	if errors.As(err, &refused) || errors.Is(err, ErrSlotLost) {
		return err
	}
	return pgerr.Explain(err)
}
