package pgstore_test

import (
	"testing"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// appears returns a presence, or nil. It ends with the test.
func appears(t *testing.T, s *pgstore.Store) store.Present {
	t.Helper()
	p, err := s.AppearRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p != nil {
		t.Cleanup(p.Close)
	}
	return p
}

// PgBouncer may send each statement of a connection to another process of the
// server, which has other locks.
func TestNoRelayAppearsThroughAPooler(t *testing.T) {
	f := newFixture(t)
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		s := pgstore.New(pool(t, bouncer(t), mode(m)), &pgstore.Options{Schema: f.schema})
		if p := appears(t, s); p != nil {
			t.Errorf("%v: a relay appeared through a pooler: %x", m, p.ID())
		}
	}
}

// The lock of a relay ends when the server closes its connection, and the relay
// learns of it.
func TestAPresenceEndsWithItsConnection(t *testing.T) {
	f := newFixture(t)
	p, other := appears(t, f.Store), appears(t, f.Store)
	number := presence.Number(p.ID())
	must(t, f.admin, `SELECT pg_terminate_backend(pid, 30000) FROM pg_locks WHERE locktype = 'advisory'
AND (classid::bigint << 32 | objid::bigint) = $1::bigint`, number)
	if _, err := p.Look(t.Context(), nil); err == nil {
		t.Error("the relay looked on a connection that the server has closed")
	}
	missing, err := other.Look(t.Context(), [][16]byte{p.ID()})
	if err != nil || len(missing) != 1 {
		t.Errorf("of a relay whose connection the server has closed, another one sees %x, %v", missing, err)
	}
}

// Any role may take the lock of a relay that has left. Then it does not look missing,
// and only its leases count.
func TestWhoTakesTheLockOfARelayDelaysOthers(t *testing.T) {
	f := newFixture(t)
	p, other := appears(t, f.Store), appears(t, f.Store)
	p.Close()
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	defer func() { _, _ = conn.Exec(t.Context(), "SELECT pg_advisory_unlock_all()") }()
	var locked bool
	for !locked { // the server ends the connection of p a moment later
		if err := conn.QueryRow(t.Context(), "SELECT pg_try_advisory_lock($1)", presence.Number(p.ID())).Scan(&locked); err != nil {
			t.Fatal(err)
		}
	}
	if missing, err := other.Look(t.Context(), [][16]byte{p.ID()}); err != nil || len(missing) > 0 {
		t.Errorf("of a relay whose lock another role has, a relay sees %x, %v", missing, err)
	}
}
