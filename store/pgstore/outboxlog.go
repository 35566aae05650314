package pgstore

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
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// OutboxMode is where relays find what is put. See docs/outbox-log.md for what each costs, and how to change it.
type OutboxMode int

const (
	// OutboxTable: relays read the table.
	OutboxTable OutboxMode = iota

	// OutboxRowsByLog: messages are rows of the table, and one relay learns of them from PostgreSQL's log, in the order of
	// commits. If the log is lost, the rows are read again.
	OutboxRowsByLog

	// OutboxLogOnly: messages are written to the log and nowhere else, so the table never grows. If the log is lost, so
	// are those that were not published yet. Those with a Delay, and those that failed, are rows all the same.
	OutboxLogOnly
)

// ErrSlotLost says that a replication slot is gone, or can no longer be read, and that messages were lost with it which
// were in the log only: those that no relay had published. Nothing is read until [Store.ResetOutboxSlot] says that this is
// known.
var ErrSlotLost = errors.New("once: the replication slot of the outbox is lost")

var _ store.OutboxLog = (*Store)(nil)

// outboxLog is what a store knows of reading the log.
type outboxLog struct {
	mode   OutboxMode
	slot   string         // empty: a name is made
	server *pgconn.Config // nil: like the pool
	emits  atomic.Pointer[emission]
	logged atomic.Bool // with OutboxTable: somebody has the log read
}

// emission is that the slot was ready a while ago.
type emission struct {
	names logNames
	until time.Time
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,60}$`) // PostgreSQL takes 63

// init checks the options of the log.
func (l *outboxLog) init(o *Options) error {
	l.mode, l.slot = o.Outbox, o.Slot
	switch {
	case l.mode < OutboxTable || l.mode > OutboxLogOnly:
		return fmt.Errorf("%w: Outbox %d is none of OutboxTable, OutboxRowsByLog and OutboxLogOnly", once.ErrInvalid, l.mode)
	case l.slot != "" && !slotName.MatchString(l.slot):
		return fmt.Errorf("%w: the slot %q is not made of lower-case letters, digits and underscores, 60 at most",
			once.ErrInvalid, l.slot)
	case o.SlotServer == "":
		return nil
	}
	var err error
	if l.server, err = pgconn.ParseConfig(o.SlotServer); err != nil {
		// The error is not shown: it quotes the text, in which a password may be.
		return fmt.Errorf("%w: SlotServer is not a URL or a list of settings that pgx can read", once.ErrInvalid)
	}
	return nil
}

// logNames are what reader and writers of the log agree on without a word.
type logNames struct {
	table       string // as SQL, with its schema
	schema      string
	relation    string // without it
	publication string
	slot        string // one server has one of a name, for all its databases
	prefix      string // of messages in the log
}

// putLock is the advisory lock that transactions share that have put messages into the log.
func (n logNames) putLock() int64 { return n.lock("put ") }

// markLock is the advisory lock of whoever changes the mark.
func (n logNames) markLock() int64 { return n.lock("mark ") }

func (n logNames) lock(what string) int64 {
	h := fnv.New64a()
	h.Write([]byte(what + n.slot))
	return int64(h.Sum64())
}

// logNames asks where the table is: stores that name one schema in two ways have one slot.
func (s *Store) logNames(ctx context.Context, q querier) (n logNames, err error) {
	var database int64
	err = q.QueryRow(ctx, `SELECT n.nspname, c.relname, d.oid::bigint FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_database d ON d.datname = current_database()
		WHERE c.oid = to_regclass($1)`, s.names.Outbox()).Scan(&n.schema, &n.relation, &database)
	if errors.Is(err, pgx.ErrNoRows) {
		return n, fmt.Errorf("%w: there is no table %s: run Migrate", once.ErrInvalid, s.names.Outbox())
	}
	if err != nil {
		return n, explain(err)
	}
	n.table = pgx.Identifier{n.schema, n.relation}.Sanitize()
	n.prefix = n.schema + "." + n.relation + logVersion
	n.publication, n.slot = s.log.slot, s.log.slot
	if s.log.slot == "" {
		h := fnv.New32a()
		h.Write([]byte(n.prefix))
		// A publication is a database's, and comes along when it is dumped and restored: so it is what a lost slot is
		// known by, and does not have the number of the database in its name.
		n.publication = fmt.Sprintf("%s_%08x", strings.ToLower(n.relation), h.Sum32())
		n.slot = fmt.Sprintf("%s_%d", n.publication, database)
	}
	return n, nil
}

// LogsRows reports whether pending rows come out of the log: with OutboxTable, whether they did when that was last asked.
func (s *Store) LogsRows() bool { return s.log.mode != OutboxTable || s.log.logged.Load() }

// isLogged asks whether pending rows come out of the log, because a process in another mode has begun that.
func (s *Store) isLogged(ctx context.Context, q querier) (logged bool, err error) {
	if s.log.mode != OutboxTable {
		return true, nil
	}
	if err = q.QueryRow(ctx, `SELECT `+markedSQL, s.names.Outbox()).Scan(&logged); err == nil {
		s.log.logged.Store(logged)
	}
	return logged, explain(err)
}

// TailOutbox reads the log from where the last reader had come, and makes the slot and the publication if they are
// missing. Rows that were pending when the slot was made are delivered first, and nothing twice. With OutboxTable it makes
// nothing, and reads what others have begun, until ResetOutboxSlot ends it.
//
// [once.ErrConflict]: another reader has the slot, or had it until a moment ago. [ErrSlotLost]: messages may have been
// lost. [once.ErrInvalid]: the server, or the role, is not set up for this; the text says what to do.
func (s *Store) TailOutbox(ctx context.Context) (store.OutboxTail, error) {
	if s.invalid != nil {
		return nil, s.invalid
	}
	if s.log.mode == OutboxTable {
		if logged, err := s.isLogged(ctx, s.pool); err != nil || !logged {
			return nil, err
		}
	}
	if s.pool.Config().MaxConns < 2 {
		return nil, fmt.Errorf("%w: a reader of the log needs two connections, and the pool has one: raise MaxConns",
			once.ErrInvalid)
	}
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	t, err := s.openTail(ctx)
	if err == nil {
		return t, nil
	}
	if !errors.Is(err, errNotLogged) {
		return nil, explainLog(err)
	}
	if logged, err := s.isLogged(ctx, s.pool); err != nil || !logged {
		return nil, err
	}
	return nil, fmt.Errorf("%w: the outbox is read from the log through a slot of another name: Options.Slot has to be the "+
		"same in all processes", once.ErrInvalid)
}

func (s *Store) openTail(ctx context.Context) (*logTail, error) {
	version, err := s.checkServer(ctx)
	if err != nil {
		return nil, err
	}
	names, err := s.logNames(ctx, s.pool)
	if err != nil {
		return nil, err
	}
	conn, err := s.dialLog(ctx)
	if err != nil {
		return nil, err
	}
	t := &logTail{store: s, names: names, conn: conn, version: version}
	if err := t.open(ctx); err != nil {
		if conn.net == nil { // the end of the session frees the place too, but some moments after its connection is closed
			_, _ = conn.query(ctx, `SELECT pg_advisory_unlock_all()`)
		}
		t.abandon()
		return nil, err
	}
	return t, nil
}

// checkServer finds what would fail later with less to say about it.
func (s *Store) checkServer(ctx context.Context) (version int, err error) {
	var level string
	var replica bool
	err = s.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		pg_is_in_recovery()`).Scan(&version, &level, &replica)
	switch {
	case err != nil:
		return 0, err
	case replica:
		err = fmt.Errorf("%w: this server is a replica: the log is read from the primary", once.ErrInvalid)
	case level != "logical":
		err = fmt.Errorf("%w: wal_level is %s: set wal_level = logical in the configuration of PostgreSQL, for example by "+
			"ALTER SYSTEM SET wal_level = logical, and restart it", once.ErrInvalid, level)
	case version < messagesVersion && s.log.mode == OutboxLogOnly:
		err = fmt.Errorf("%w: OutboxLogOnly needs PostgreSQL 14 or newer, and this is %d: use OutboxRowsByLog",
			once.ErrInvalid, version/10000)
	}
	return version, err
}

// messagesVersion is the first that hands out messages in the log.
const messagesVersion = 140000

const inUse = "55006" // SQLSTATE

// explainLog is explain, with what the errors of replication mean here.
func explainLog(err error) error {
	var refused sqlschema.Refusal
	switch sqlState(err) {
	case inUse:
		return fmt.Errorf("%w: another reader has the slot: %w", once.ErrConflict, err)
	case "42501", "28000": // insufficient privilege, invalid authorization
		return fmt.Errorf("%w: the role of the reader needs REPLICATION, and, for the first time, CREATE on the database and "+
			"to own the table of the outbox: %w", once.ErrInvalid, err)
	case "53400": // configuration limit exceeded
		return fmt.Errorf("%w: raise max_replication_slots, the reader needs one: %w", once.ErrInvalid, err)
	case "53300": // too many connections
		return fmt.Errorf("once: no connection for the reader of the log; its limit is max_wal_senders: %w", err)
	case "08P01":
		return fmt.Errorf("%w: the server takes no connection for replication: if this is PgBouncer, let Options.SlotServer "+
			"name the server behind it: %w", once.ErrInvalid, err)
	}
	if errors.As(err, &refused) || errors.Is(err, ErrSlotLost) {
		return err
	}
	return explain(err)
}
