package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// lockSession is the presence of a relay that holds an advisory lock, on a connection
// of its own. The lock ends with the connection.
type lockSession struct {
	conn  *pgx.Conn
	pid   uint32
	place presence.Place
	id    [16]byte
}

const (
	// placeSQL returns the process of the connection, and what tells the running
	// server, which has the lock in its memory, from others.
	placeSQL = `SELECT pg_backend_pid(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
	current_setting('port'), current_database()::text`

	presentSQL = `SELECT pg_try_advisory_lock($1::bigint)`

	// missingSQL returns whether nobody has a lock. A lock that it takes ends with the
	// statement, and is no obstacle to others that look.
	missingSQL = `SELECT pg_backend_pid(), pg_try_advisory_xact_lock_shared(lock) FROM
		unnest($1::bigint[]) WITH ORDINALITY AS u (lock, nth) ORDER BY nth`
)

// AppearRelay begins the presence of a relay, on a connection of its own: one more
// than those of the pool, as for HearOutbox. It returns nil if there is a pooler
// between, such as PgBouncer, or if other connections do not see the lock.
func (s *Store) AppearRelay(ctx context.Context) (store.Present, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, explain(err)
	}
	p := &lockSession{conn: conn}
	seen, err := p.lock(ctx, s)
	if err != nil || !seen {
		p.Close()
		return nil, explain(err)
	}
	return p, nil
}

// lock takes the lock of a new relay, and reports whether others see it.
func (p *lockSession) lock(ctx context.Context, s *Store) (seen bool, err error) {
	var started, port, database string
	if err := p.conn.QueryRow(ctx, placeSQL).Scan(&p.pid, &started, &port, &database); err != nil {
		return false, err
	}
	if p.pid != p.conn.PgConn().PID() {
		return false, nil // the connection is that of a pooler, which may share those to the server
	}
	p.place = presence.PlaceOf("postgresql", started, port, database)
	p.id = p.place.NewID()
	var locked, free bool
	var pid uint32
	if err := p.conn.QueryRow(ctx, presentSQL, presence.Number(p.id)).Scan(&locked); err != nil || !locked {
		return false, err
	}
	err = s.pool.QueryRow(ctx, missingSQL, []int64{presence.Number(p.id)}).Scan(&pid, &free)
	return err == nil && !free, err
}

func (p *lockSession) ID() [16]byte { return p.id }

func (p *lockSession) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	locks, of := []int64{presence.Number(p.id)}, [][16]byte{p.id}
	for _, id := range others {
		if p.place.Has(id) && id != p.id {
			locks, of = append(locks, presence.Number(id)), append(of, id)
		}
	}
	rows, err := p.conn.Query(ctx, missingSQL, locks)
	if err != nil {
		return nil, explain(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var pid uint32
		var free bool
		if err := rows.Scan(&pid, &free); err != nil {
			return nil, explain(err)
		}
		if pid != p.pid {
			return nil, fmt.Errorf("once: the connection is now that of process %d, and was that of %d: is there a pooler between?", pid, p.pid)
		}
		if free && of[n] != p.id { // it is no obstacle to itself
			missing = append(missing, of[n])
		}
	}
	if err := rows.Err(); err != nil {
		return nil, explain(err)
	}
	if n != len(of) {
		return nil, fmt.Errorf("once: the server looked for %d of %d relays", n, len(of))
	}
	return missing, nil
}

// closeTime bounds the end of a presence.
const closeTime = time.Second

// Close closes the connection, which ends the lock.
func (p *lockSession) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = p.conn.Close(ctx)
}
