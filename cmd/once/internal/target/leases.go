package target

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
)

// Leases returns which relay holds which lane of the outbox, without a change.
func (t *Target) Leases(ctx context.Context) (store.Leases, error) {
	if t.Tables != nil {
		return t.Tables.Leases(ctx)
	}
	s, err := Need[interface {
		OutboxLeases(context.Context) (store.Leases, error)
	}](t, AnOutbox)
	if err != nil {
		return store.Leases{}, err
	}
	return s.OutboxLeases(ctx)
}

// Leases returns which relay holds which lane of the outbox. Unlike LeaseLanes
// of a store, which is a relay's heartbeat, it changes nothing.
func (t *Tables) Leases(ctx context.Context) (l store.Leases, err error) {
	now := t.Names.Now()
	err = t.DB.QueryRowContext(ctx, "SELECT count(*) FROM "+t.Names.Relays()+" WHERE lease_until > "+now).Scan(&l.Relays)
	if err != nil {
		return l, err
	}
	rows, err := t.DB.QueryContext(ctx,
		"SELECT lane, relay, lease_until - "+now+" FROM "+t.Names.Lanes()+" WHERE relay IS NOT NULL")
	if err != nil {
		return l, err
	}
	defer rows.Close()
	for rows.Next() {
		var lane int
		var relay []byte
		var left int64
		if err := rows.Scan(&lane, &relay, &left); err != nil {
			return l, err
		}
		if lane < 0 || lane >= store.Lanes {
			return l, fmt.Errorf("there is a lane %d, but this program knows %d lanes: upgrade it", lane, store.Lanes)
		}
		l.Lanes[lane].Left = time.Duration(left) * time.Microsecond
		if l.Lanes[lane].Relay, err = token(relay); err != nil {
			return l, err
		}
	}
	return l, rows.Err()
}

// token parses 16 bytes, which the PostgreSQL driver returns as the text of a
// UUID.
func token(b []byte) (id [16]byte, err error) {
	if len(b) != len(id) {
		if b, err = hex.DecodeString(strings.ReplaceAll(string(b), "-", "")); err != nil {
			return id, err
		}
	}
	copy(id[:], b)
	return id, nil
}
