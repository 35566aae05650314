package eventhubsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
)

// members is how the sessions of a group find each other. There is a slot for
// each partition, which is a key in a store. A session holds one slot while it is
// open. The order of the held slots decides which session reads a partition.
//
// Sessions may see different members for a moment, and then two of them read one
// partition. That costs work and decides nothing: see [store.Positions].
type members struct {
	store once.Store
	group string // the log and the group, in the IDs of the keys
	slots int
	lease time.Duration

	token [16]byte   // owner of the claims of this session
	held  once.Fence // of the slot; zero: none
}

func newMembers(store once.Store, log, group string, slots int, lease time.Duration) *members {
	readable := fmt.Sprintf("%.60s %.60s %s", log, group, name.Format(name.Digest(log, group)))
	return &members{store: store, group: readable, slots: slots, lease: lease, token: name.Token()}
}

func (m *members) key(slot int) once.Key {
	return once.Key{Operation: "eventhubsbroker/member", ID: fmt.Sprintf("%s %d", m.group, slot)}
}

// look renews the slot of this session, or takes a free one. It returns the rank
// of the session among all members, and their number. The rank is -1 if all slots
// are held by others.
func (m *members) look(ctx context.Context) (rank, of int, err error) {
	if err := m.renew(ctx); err != nil {
		return 0, 0, err
	}
	rank = -1
	for slot := range m.slots {
		key := m.key(slot)
		rec, err := m.store.Get(ctx, key)
		if err != nil {
			return 0, 0, err
		}
		if m.held == (once.Fence{}) && (rec.Status != once.Running || rec.Owner == m.token) {
			if rec, err = m.take(ctx, key, rec); err != nil {
				return 0, 0, err
			}
		} else if rec.Status == once.Unknown {
			if err := m.clear(ctx, rec); err != nil {
				return 0, 0, err
			}
			continue
		}
		if m.held.Key == key {
			rank = of
		}
		if m.held.Key == key || rec.Status == once.Running {
			of++
		}
	}
	return rank, of, nil
}

// renew extends the lease of the slot. If that has lapsed, the session has none.
func (m *members) renew(ctx context.Context) error {
	if m.held == (once.Fence{}) {
		return nil
	}
	err := m.store.Extend(ctx, m.held, m.lease)
	if errors.Is(err, once.ErrLeaseLost) {
		m.held, m.token = once.Fence{}, name.Token()
		return nil
	}
	return err
}

// take claims a slot that is free, or whose session has died. It returns the
// record of the slot, which another session may have taken first.
func (m *members) take(ctx context.Context, key once.Key, was once.Record) (once.Record, error) {
	fence := once.Fence{Key: key, Owner: m.token}
	if was.Status == once.Unknown {
		if was.Owner == m.token { // of an earlier claim whose reply was lost
			m.token = name.Token()
			fence.Owner = m.token
		}
		fence.Attempt = was.Attempt
	}
	rec, err := m.store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: m.lease})
	if err == nil && rec.Status == once.Running && rec.Owner == m.token {
		m.held = once.Fence{Key: key, Owner: m.token, Attempt: rec.Attempt}
	}
	return rec, err
}

// clear frees the slot of a session that has died, so that no record is left for
// people to look after.
func (m *members) clear(ctx context.Context, was once.Record) error {
	fence := once.Fence{Key: was.Key, Owner: name.Token(), Attempt: was.Attempt}
	rec, err := m.store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: m.lease})
	if err != nil || rec.Status != once.Running || rec.Owner != fence.Owner {
		return err
	}
	fence.Attempt = rec.Attempt
	return m.free(ctx, fence)
}

// leave frees the slot of this session.
func (m *members) leave(ctx context.Context) error {
	if m.held == (once.Fence{}) {
		return nil
	}
	err := m.free(ctx, m.held)
	m.held = once.Fence{}
	return err
}

func (m *members) free(ctx context.Context, fence once.Fence) error {
	err := m.store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: time.Hour, Reason: "the session has ended"})
	if errors.Is(err, once.ErrLeaseLost) { // another session was faster
		return nil
	}
	return err
}
