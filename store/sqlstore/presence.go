package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// AppearRelay begins the presence of a relay.
//
// In SQLite on Linux, it locks a byte of a file beside the database, whose name ends
// in -relays. In MySQL and MariaDB, it holds GET_LOCK on a connection of the pool
// that it keeps. It returns nil for a database in memory or of another kind, for
// Galera, whose nodes do not see each other's locks, and if the pool would have
// fewer than four connections for each relay.
func (s *Store) AppearRelay(ctx context.Context) (store.Present, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	switch s.dialect {
	case sqlschema.SQLite:
		return s.appearInFile(ctx)
	case sqlschema.MySQL:
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

func (s *Store) appearInSession(ctx context.Context) (store.Present, error) {
	relays := s.prepared.relays.Add(1)
	p := &session{store: s}
	if most := s.pool.Stats().MaxOpenConnections; most > 0 && int(relays)*connectionsPerRelay > most {
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

// session is the presence of a relay that holds a lock in MySQL, on a connection
// that it keeps. The lock ends with the connection.
type session struct {
	store *Store
	conn  *sql.Conn
	place presence.Place
	id    [16]byte
	close sync.Once
}

// placeSQL returns what tells a running server, which has the lock in its memory,
// from others, and what tells a node of Galera.
const placeSQL = `SHOW GLOBAL VARIABLES WHERE Variable_name IN
	('hostname', 'port', 'datadir', 'server_id', 'server_uuid', 'server_uid', 'wsrep_on', 'wsrep_provider')`

// lock takes the lock of a new relay, and reports whether others see it.
func (p *session) lock(ctx context.Context) (seen bool, err error) {
	if p.conn, err = p.store.pool.Conn(ctx); err != nil {
		return false, err
	}
	galera, err := p.ask(ctx)
	if err != nil || galera {
		return false, err
	}
	var locked, other sql.NullBool
	err = p.conn.QueryRowContext(ctx, "SELECT GET_LOCK("+lockName(p.id)+", 0)").Scan(&locked)
	if err != nil || !locked.Bool {
		return false, err
	}
	err = p.store.pool.QueryRowContext(ctx, "SELECT IS_FREE_LOCK("+lockName(p.id)+")").Scan(&other)
	return err == nil && other.Valid && !other.Bool, err
}

// ask sets the place and the ID.
func (p *session) ask(ctx context.Context) (galera bool, err error) {
	rows, err := p.conn.QueryContext(ctx, placeSQL)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	properties := []string{"mysql"}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return false, err
		}
		name = strings.ToLower(name)
		galera = galera || name == "wsrep_on" && value != "OFF" || name == "wsrep_provider" && value != "" && value != "none"
		properties = append(properties, name+"="+value)
	}
	p.place = presence.PlaceOf(properties...)
	p.id = p.place.NewID()
	return galera, rows.Err()
}

// lockName returns the name of a relay's lock, in quotes.
func lockName(id [16]byte) string { return fmt.Sprintf("'once-relay-%x'", id) }

func (p *session) ID() [16]byte { return p.id }

func (p *session) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	query := "SELECT IS_USED_LOCK(" + lockName(p.id) + ") = CONNECTION_ID()"
	var here sql.NullBool
	answers := []any{&here}
	var of [][16]byte
	for _, id := range others {
		if p.place.Has(id) && id != p.id {
			query += ", IS_FREE_LOCK(" + lockName(id) + ")"
			answers, of = append(answers, new(sql.NullBool)), append(of, id)
		}
	}
	if err := p.conn.QueryRowContext(ctx, query).Scan(answers...); err != nil {
		return nil, p.store.explain(err)
	}
	if !here.Bool {
		return nil, errors.New("once: the server has ended the lock of the relay")
	}
	for i, id := range of {
		if free := answers[i+1].(*sql.NullBool); free.Valid && free.Bool {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// Close closes the connection to the server, which ends the lock.
func (p *session) Close() {
	p.close.Do(func() {
		if p.conn != nil {
			sqltx.Discard(p.conn)
			_ = p.conn.Close()
		}
		p.store.prepared.relays.Add(-1)
	})
}
