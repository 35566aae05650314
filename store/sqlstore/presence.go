package sqlstore

import (
	"context"
	"database/sql"
	"reflect"
	"sync"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// AppearRelay begins the presence of a relay.
//
// In SQLite on Linux, it locks a byte of a file beside the database, whose name ends
// in -relays. In MySQL and MariaDB, it holds GET_LOCK on a connection of the pool
// that it keeps, and in PostgreSQL with package stdlib of pgx an advisory lock. It
// returns nil
//
//   - for a database in memory, and for SQL Server,
//   - with other drivers of PostgreSQL, or one that hides pgx: only pgx tells which
//     process the server named, and so whether there is a pooler between,
//   - through a pooler, such as PgBouncer, and for Galera, whose nodes do not see each
//     other's locks,
//   - if the pool would have fewer than four connections for each relay. Only
//     SetMaxOpenConns tells how many it has: call it after OpenDBFromPool of pgx.
func (s *Store) AppearRelay(ctx context.Context) (store.Present, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	switch s.dialect {
	case sqlschema.SQLite:
		return s.appearInFile(ctx)
	case sqlschema.MySQL, sqlschema.PostgreSQL:
		return s.appearInSession(ctx)
	}
	return nil, nil
}

func (s *Store) appearInFile(ctx context.Context) (store.Present, error) {
	var file string // empty if the database is in memory
	err := s.pool.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file)
	if err != nil || file == "" {
		return nil, s.explain(err)
	}
	return lockFile(file + "-relays")
}

// connectionsPerRelay is how many connections a pool must have for each relay that
// keeps one.
const connectionsPerRelay = 4

// keepers is the number of relays that keep a connection of a pool.
var keepers = struct {
	sync.Mutex
	of map[*sql.DB]int
}{of: make(map[*sql.DB]int)}

// keep changes the number of relays that keep a connection, and returns it.
func keep(pool *sql.DB, by int) (relays int) {
	keepers.Lock()
	defer keepers.Unlock()
	relays = keepers.of[pool] + by
	if keepers.of[pool] = relays; relays == 0 {
		delete(keepers.of, pool)
	}
	return relays
}

func (s *Store) appearInSession(ctx context.Context) (store.Present, error) {
	relays := keep(s.pool, 1)
	p := &session{store: s}
	if most := s.pool.Stats().MaxOpenConnections; most > 0 && relays*connectionsPerRelay > most {
		p.Close()
		return nil, nil
	}
	seen, err := p.lock(ctx)
	if err != nil || !seen {
		p.Close()
		return nil, s.explain(err)
	}
	return p, nil
}

// session is the presence of a relay that holds a lock of the server, on a
// connection that it keeps. The lock ends with the connection.
type session struct {
	sessionLock
	store *Store
	conn  *sql.Conn
	close sync.Once
}

type sessionLock interface {
	ID() [16]byte
	Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error)
}

// lock takes the lock of a new relay, and reports whether others see it.
func (p *session) lock(ctx context.Context) (seen bool, err error) {
	if p.conn, err = p.store.pool.Conn(ctx); err != nil {
		return false, err
	}
	if p.store.dialect == sqlschema.MySQL {
		l := &mysqlLock{conn: p.conn}
		p.sessionLock = l
		return l.take(ctx, p.store.pool)
	}
	l, err := publishing.LockRelay(ctx, sqltx.Querier{DB: p.conn}, sqltx.Querier{DB: p.store.pool}, serverProcess(p.conn))
	if l != nil {
		p.sessionLock = l
	}
	return l != nil, err
}

// serverProcess returns the process that a PostgreSQL server named when the
// connection began, or 0 if the driver does not tell. Package stdlib of pgx, which
// is not imported here, does: by Conn().PgConn().PID().
func serverProcess(conn *sql.Conn) (pid uint32) {
	_ = conn.Raw(func(driverConn any) error {
		pgx := onlyResult(reflect.ValueOf(driverConn).MethodByName("Conn"))
		if !pgx.IsValid() {
			return nil
		}
		server := onlyResult(pgx.MethodByName("PgConn"))
		if !server.IsValid() {
			return nil
		}
		if named, ok := server.Interface().(interface{ PID() uint32 }); ok {
			pid = named.PID()
		}
		return nil
	})
	return pid
}

// onlyResult calls a method that has no parameters, and returns its result. That is
// not valid if there is no such method, or if it returns another kind than a pointer.
func onlyResult(method reflect.Value) (result reflect.Value) {
	if !method.IsValid() || method.Type().NumIn() > 0 || method.Type().NumOut() != 1 {
		return result
	}
	if result = method.Call(nil)[0]; result.Kind() != reflect.Pointer || result.IsNil() {
		return reflect.Value{}
	}
	return result
}

func (p *session) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	missing, err = p.sessionLock.Look(ctx, others)
	return missing, p.store.explain(err)
}

// Close closes the connection to the server, which ends the lock. A driver that has
// a pool of its own may keep a connection that is closed, as pgx does after
// OpenDBFromPool.
func (p *session) Close() {
	p.close.Do(func() {
		if l, ok := p.sessionLock.(*publishing.RelayLock); ok {
			l.End()
		}
		if p.conn != nil {
			sqltx.Discard(p.conn)
		}
		keep(p.store.pool, -1)
	})
}
