package pgstore_test

import (
	"testing"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
)

// lag returns what a store reports about the reader.
func lag(t testing.TB, s *pgstore.Store) *store.Lag {
	t.Helper()
	lag, err := s.OutboxLag(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lag
}

// distance returns how many bytes of log follow a position of the slot.
func (f *logFixture) distance(t testing.TB, place string) (bytes int64) {
	t.Helper()
	slot, err := f.log.OutboxSlot(t.Context())
	if err == nil {
		err = f.admin.QueryRow(t.Context(), `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), `+place+`)::bigint
			FROM pg_replication_slots WHERE slot_name = $1`, slot.Name).Scan(&bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// write writes at least that many bytes to the log that do not concern the
// reader.
func (f *logFixture) write(t testing.TB, bytes int) {
	t.Helper()
	must(t, f.admin, `SELECT pg_logical_emit_message(true, 'other', repeat('x', $1))`, bytes)
}

func TestTheLagGrowsWhileAReaderStands(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		bystander := f.mode(pgstore.OutboxTable)
		if got := lag(t, f.log); got == nil || got.Status != store.LagMissing || got.Active || got.Behind != 0 || got.Retained != 0 {
			t.Errorf("before there was a reader: %+v", got)
		}
		if got := lag(t, bystander); got != nil {
			t.Errorf("a store that reads no log has a lag: %+v", got)
		}
		reader := tail(t, f.log)
		f.put(t, "a")
		ms := wantReceived(t, reader, "a") // and is not marked as sent
		const much = 8 << 20
		f.write(t, much)
		waitFor(t, func() bool { // the server may remove log in between
			behind, retained := f.distance(t, `confirmed_flush_lsn`), f.distance(t, `restart_lsn`)
			got := lag(t, f.log)
			return behind >= much && got.Behind >= behind && got.Behind <= f.distance(t, `confirmed_flush_lsn`) &&
				retained >= behind && got.Retained >= retained && got.Retained <= f.distance(t, `restart_lsn`)
		})
		for _, s := range []*pgstore.Store{f.log, bystander} { // both report log that fills the disk
			if got := lag(t, s); got == nil || !got.Active || got.Status != store.LagReserved || got.Behind < much {
				t.Errorf("while it stands still: %+v", got)
			}
		}
		sendOff(t, reader, ms...)
		f.settled(t)
		if got := lag(t, f.log); got.Behind >= much {
			t.Errorf("when it has gone on: %+v", got)
		}
		closeTail(t, reader)
		waitFor(t, func() bool { return !lag(t, f.log).Active })
		f.lose(t)
		if got := lag(t, f.log); got == nil || got.Status != store.LagMissing {
			t.Errorf("when its place is gone: %+v", got)
		}
	})
}

// The statuses are the values of PostgreSQL's wal_status.
func TestTheLagHasTheStatusOfTheSlot(t *testing.T) {
	for _, word := range []string{"reserved", "extended", "unreserved", "lost"} {
		if got := pgstore.LagOf(pgstore.Slot{Status: word}).Status.String(); got != word {
			t.Errorf("%s is taken for %s", word, got)
		}
	}
}
