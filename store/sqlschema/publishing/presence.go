package publishing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store/sqlschema"
)

// RelayLock is the presence of a relay in PostgreSQL: an advisory lock of the
// session of a connection, which ends with the session.
//
// A pooler may send each statement of a connection to another session, and those
// of several relays to one. Even then, no relay is missing that is present:
//
//   - A Look succeeds only in the session that has the lock. To see that, it
//     returns the lock and takes it again. It has it twice, so it never is without.
//   - A session can always take its own locks. So whether a lock that it could take
//     is free, pg_locks has to confirm.
type RelayLock struct {
	conn  sqlschema.Querier
	pid   uint32
	place presence.Place
	id    [16]byte
}

const (
	// placeSQL returns the process of the session, and what tells the running
	// server, which has the lock in its memory, from others.
	placeSQL = `SELECT pg_backend_pid(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
	current_setting('port'), current_database()::text`

	lockSQL = `SELECT pg_try_advisory_lock($1::bigint) AND pg_try_advisory_lock($1::bigint)`

	// lockedSQL returns whether another session has the lock.
	lockedSQL = `SELECT NOT pg_try_advisory_xact_lock_shared($1::bigint)`

	// lookSQL returns whether the session has the lock of this relay, and which of
	// the others nobody has. A lock that it takes of those ends with the statement,
	// and is no obstacle to others that look.
	lookSQL = `SELECT 0, pg_backend_pid(), CASE WHEN pg_backend_pid() <> $1::integer THEN false
		WHEN pg_advisory_unlock($2::bigint) THEN pg_try_advisory_lock($2::bigint) ELSE false END
	UNION ALL SELECT nth, pg_backend_pid(), CASE WHEN pg_try_advisory_xact_lock_shared(lock) THEN NOT EXISTS (
		SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted
		AND (classid::bigint << 32 | objid::bigint) = lock) ELSE false END
	FROM unnest($3::text::bigint[]) WITH ORDINALITY AS u (lock, nth)`

	unlockSQL = `SELECT pg_advisory_unlock($1::bigint), pg_advisory_unlock($1::bigint) WHERE pg_backend_pid() = $2::integer`
)

// LockRelay takes the lock of a new relay on a connection. Told is the process that
// the server named when the connection began. LockRelay returns nil if another
// process answers, because a pooler is between, or if the pool, whose other
// connections stand for other relays, does not see the lock.
func LockRelay(ctx context.Context, conn, pool sqlschema.Querier, told uint32) (*RelayLock, error) {
	l := &RelayLock{conn: conn}
	var started, port, database string
	if err := ask(ctx, conn, placeSQL, nil, &l.pid, &started, &port, &database); err != nil || l.pid != told {
		return nil, err
	}
	l.place = presence.PlaceOf("postgresql", started, port, database)
	l.id = l.place.NewID()
	number := []any{presence.Number(l.id)}
	var locked, seen bool
	err := ask(ctx, conn, lockSQL, number, &locked)
	if err == nil && locked {
		err = ask(ctx, pool, lockedSQL, number, &seen)
	}
	if err == nil && seen {
		_, err = l.Look(ctx, nil) // for which the role may lack a right
	}
	if err != nil || !seen {
		l.End()
		return nil, err
	}
	return l, nil
}

// ask scans the only row of a query.
func ask(ctx context.Context, q sqlschema.Querier, query string, args []any, to ...any) error {
	return sqlschema.Each(ctx, q, query, args, func(rows sqlschema.Rows) error { return rows.Scan(to...) })
}

// ID returns the ID of the relay.
func (l *RelayLock) ID() [16]byte { return l.id }

// Look is that of [store.Present].
func (l *RelayLock) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	var locks []string
	var of [][16]byte
	for _, id := range others {
		if l.place.Has(id) && id != l.id {
			locks, of = append(locks, strconv.FormatInt(presence.Number(id), 10)), append(of, id)
		}
	}
	answers := 0
	args := []any{int64(l.pid), presence.Number(l.id), "{" + strings.Join(locks, ",") + "}"}
	err = sqlschema.Each(ctx, l.conn, lookSQL, args, func(rows sqlschema.Rows) error {
		var nth int
		var pid uint32
		var yes bool
		if err := rows.Scan(&nth, &pid, &yes); err != nil {
			return err
		}
		answers++
		switch {
		case pid != l.pid:
			return fmt.Errorf("once: the connection is now that of process %d, and was that of %d: is there a pooler between?", pid, l.pid)
		case nth == 0 && !yes:
			return errors.New("once: the session no longer has the lock of the relay")
		case nth > 0 && yes:
			missing = append(missing, of[nth-1])
		}
		return nil
	})
	if err == nil && answers != 1+len(of) {
		err = fmt.Errorf("once: the server looked for %d of %d relays", answers-1, len(of))
	}
	if err != nil {
		return nil, err
	}
	return missing, nil
}

// endTime bounds End.
const endTime = time.Second

// End returns the lock, if the session still has it. A connection that is closed
// needs no End.
func (l *RelayLock) End() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_, _ = l.conn.Exec(ctx, unlockSQL, presence.Number(l.id), int64(l.pid))
}
