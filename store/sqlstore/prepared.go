package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// maxPrepared bounds the prepared statements on each connection of a pool. One
// Store uses fewer. In MySQL, those of all connections together are bounded too
// (max_prepared_stmt_count, by default 16,382).
const maxPrepared = 32

// prepared are the prepared statements of a pool, which all its Stores share.
// They are closed with the pool, or after the last of these Stores.
//
// A statement is sent as it is until a later call that holds no connection has
// prepared it. To prepare takes a connection, for which a call inside a
// transaction might wait in vain.
type prepared struct{ *statements }

type statements struct {
	pool    *sql.DB
	dialect sqlschema.Dialect

	mu      sync.Mutex
	byText  map[string]*sql.Stmt // nil for one that is to be prepared
	reading map[reading]bool     // the queries in transactions whose rows are open

	wanted    atomic.Bool // byText has a nil
	preparing sync.Mutex
	gain      atomic.Int32 // a gain
}

// reading is a query in a transaction. A connection has a statement only once,
// so it cannot be run again while its rows are open.
type reading struct {
	tx   *sql.Tx
	text string
}

// gain is whether prepared statements are faster than others.
type gain int32

const (
	gainUnknown gain = iota
	gainYes
	gainNo // the driver sends a statement with its arguments in one round trip
)

// pools has the statements of each pool, and keeps neither in memory.
var pools = struct {
	sync.Mutex
	prepared map[weak.Pointer[sql.DB]]weak.Pointer[prepared]
}{prepared: make(map[weak.Pointer[sql.DB]]weak.Pointer[prepared])}

// preparedOf returns the statements of a pool. It returns nil for a dialect
// whose drivers do not gain by them.
func preparedOf(pool *sql.DB, d sqlschema.Dialect) *prepared {
	if pool == nil || d != sqlschema.SQLite && d != sqlschema.MySQL {
		return nil
	}
	key := weak.Make(pool)
	pools.Lock()
	defer pools.Unlock()
	if p := pools.prepared[key].Value(); p != nil {
		return p
	}
	p := &prepared{&statements{pool: pool, dialect: d, byText: make(map[string]*sql.Stmt),
		reading: make(map[reading]bool)}}
	if d == sqlschema.SQLite { // which parses a statement at each call
		p.gain.Store(int32(gainYes))
	}
	self := weak.Make(p)
	pools.prepared[key] = self
	runtime.AddCleanup(p, func(s *statements) {
		pools.Lock()
		if pools.prepared[key] == self {
			delete(pools.prepared, key)
		}
		pools.Unlock()
		go s.close() // waits for running calls of the driver
	}, p.statements)
	return p
}

func (s *statements) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byText {
		if st != nil {
			_ = st.Close()
		}
	}
}

// get returns a prepared statement. If there is none, it returns nil and asks
// prepare for it.
func (p *prepared) get(text string) *sql.Stmt {
	if gain(p.gain.Load()) == gainNo {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st, known := p.byText[text]
	if !known && len(p.byText) < maxPrepared {
		p.byText[text] = nil
		p.wanted.Store(true)
	}
	return st
}

// largestPrepared bounds the arguments of a prepared statement in MySQL. The
// driver sends a larger one in parts. If the server refuses these together, by
// max_allowed_packet, it refuses each later execution of that statement too,
// whatever its arguments are. The bound is far below what any server refuses.
const largestPrepared = 256 << 10

// getFor is get for a statement that changes something.
func (p *prepared) getFor(text string, args []any) *sql.Stmt {
	if p.dialect == sqlschema.MySQL && slices.ContainsFunc(args, isLarge) {
		return nil
	}
	return p.get(text)
}

func isLarge(arg any) bool {
	text, _ := arg.(string)
	bytes, _ := arg.([]byte)
	return len(text)+len(bytes) > largestPrepared
}

// prepare prepares the statements that get was asked for. The caller holds no
// connection. A statement that cannot be prepared is sent as it is, and its
// caller gets the error.
func (p *prepared) prepare(ctx context.Context) {
	if p == nil || !p.wanted.Load() || !p.preparing.TryLock() {
		return
	}
	defer p.preparing.Unlock()
	if !p.gains(ctx) {
		return
	}
	p.wanted.Store(false)
	for _, text := range p.missing() {
		st, err := p.pool.PrepareContext(ctx, text)
		p.mu.Lock()
		if p.byText[text] = st; err != nil {
			delete(p.byText, text)
		}
		p.mu.Unlock()
	}
}

func (p *prepared) missing() (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for text, st := range p.byText {
		if st == nil {
			texts = append(texts, text)
		}
	}
	return texts
}

// gains reports whether to prepare. By default, the driver of MySQL prepares,
// executes and closes a statement with arguments at each call. A driver that
// puts the arguments into the text was told to (interpolateParams), perhaps
// because of a proxy that has no prepared statements.
func (p *prepared) gains(ctx context.Context) bool {
	if known := gain(p.gain.Load()); known != gainUnknown {
		return known == gainYes
	}
	conn, err := p.pool.Conn(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	err = conn.Raw(func(c any) error {
		direct, ok := c.(driver.QueryerContext)
		if !ok {
			return driver.ErrSkip
		}
		rows, err := direct.QueryContext(ctx, "SELECT ?", []driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
		if err != nil {
			return err
		}
		return rows.Close()
	})
	switch {
	case errors.Is(err, driver.ErrSkip): // database/sql then prepares
		p.gain.Store(int32(gainYes))
		return true
	case err == nil:
		p.gain.Store(int32(gainNo))
	}
	return false
}

// on returns db as one that uses the prepared statements.
func (p *prepared) on(db sqltx.DB) sqltx.DB {
	if p == nil {
		return db
	}
	switch db := db.(type) {
	case *sql.DB:
		return preparedDB{db, p}
	case *sql.Tx:
		return preparedTx{db, p}
	}
	return db
}

// forQuery is on for a query, whose rows are open until the caller calls closed.
// If another goroutine reads by the same statement in the same transaction, it
// returns db as it is.
func (p *prepared) forQuery(db sqltx.DB, text string) (with sqltx.DB, closed func()) {
	tx, ok := db.(*sql.Tx)
	if p == nil || !ok {
		return p.on(db), func() {}
	}
	r := reading{tx, text}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reading[r] {
		return db, func() {}
	}
	p.reading[r] = true
	return p.on(db), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.reading, r)
	}
}

// querier is forQuery for the features that all SQL stores share.
type querier struct {
	db sqltx.DB
	*prepared
}

func (q querier) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	return sqltx.Querier{DB: q.on(q.db)}.Exec(ctx, text, args...)
}

func (q querier) Query(ctx context.Context, text string, args ...any) (sqlschema.Rows, error) {
	db, closed := q.forQuery(q.db, text)
	found, err := sqltx.Querier{DB: db}.Query(ctx, text, args...)
	if err != nil {
		closed()
		return nil, err
	}
	return preparedRows{found, closed}, nil
}

type preparedRows struct {
	sqlschema.Rows
	closed func()
}

func (r preparedRows) Close() {
	r.Rows.Close()
	r.closed()
}

// notRun reports whether the server did not run a statement because it does not
// have it prepared.
func (p *prepared) notRun(err error) bool { return p.dialect.Failure(err) == sqlschema.NotPrepared }

type preparedDB struct {
	db *sql.DB
	*prepared
}

func (p preparedDB) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if st := p.getFor(text, args); st != nil {
		if result, err := st.ExecContext(ctx, args...); !p.notRun(err) {
			return result, err
		}
	}
	return p.db.ExecContext(ctx, text, args...)
}

func (p preparedDB) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if st := p.get(text); st != nil {
		if rows, err := st.QueryContext(ctx, args...); !p.notRun(err) {
			return rows, err
		}
	}
	return p.db.QueryContext(ctx, text, args...)
}

// preparedTx prepares a statement on the connection of its transaction if it is
// prepared on other connections only.
//
// The Close of a statement in a transaction leaves it prepared. It returns the
// error of StmtContext, if that failed, because the transaction is one of
// another pool, for example. Then the statement was not sent.
type preparedTx struct {
	tx *sql.Tx
	*prepared
}

func (p preparedTx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if st := p.getFor(text, args); st != nil {
		own := p.tx.StmtContext(ctx, st)
		result, err := own.ExecContext(ctx, args...)
		if own.Close() == nil && !p.notRun(err) {
			return result, err
		}
	}
	return p.tx.ExecContext(ctx, text, args...)
}

func (p preparedTx) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if st := p.get(text); st != nil {
		own := p.tx.StmtContext(ctx, st)
		rows, err := own.QueryContext(ctx, args...)
		if own.Close() == nil && !p.notRun(err) {
			return rows, err
		}
	}
	return p.tx.QueryContext(ctx, text, args...)
}
