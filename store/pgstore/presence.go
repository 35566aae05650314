package pgstore

import (
	"context"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/jackc/pgx/v5"
)

// present is the presence of a relay that holds an advisory lock, on a connection
// of its own.
type present struct {
	*publishing.RelayLock
	conn *pgx.Conn
}

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
	p := &present{conn: conn}
	p.RelayLock, err = publishing.LockRelay(ctx, client{conn}, client{s.pool}, conn.PgConn().PID())
	if err != nil || p.RelayLock == nil {
		p.Close()
		return nil, explain(err)
	}
	return p, nil
}

func (p *present) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	missing, err = p.RelayLock.Look(ctx, others)
	return missing, explain(err)
}

// closeTime bounds the end of a presence.
const closeTime = time.Second

// Close closes the connection, which ends the lock.
func (p *present) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = p.conn.Close(ctx)
}
