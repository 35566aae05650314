package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// logFixture is a store that has its messages read out of the log.
type logFixture struct {
	*fixture
	log *pgstore.Store
}

func newLog(t testing.TB, mode pgstore.OutboxMode, changes ...func(*pgxpool.Config)) *logFixture {
	t.Helper()
	f := &logFixture{fixture: newFixture(t, changes...)}
	f.log = f.mode(mode)
	t.Cleanup(func() { // a slot outlives its schema, and would keep log for ever
		waitFor(t, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
			defer cancel()
			return f.log.DiscardOutboxLog(ctx) == nil
		})
	})
	return f
}

func (f *logFixture) mode(mode pgstore.OutboxMode) *pgstore.Store {
	return pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Outbox: mode})
}

// inBoth runs a test in both log modes.
func inBoth(t *testing.T, test func(t *testing.T, mode pgstore.OutboxMode)) {
	for name, mode := range map[string]pgstore.OutboxMode{"rows": pgstore.OutboxRowsByLog, "log only": pgstore.OutboxLogOnly} {
		t.Run(name, func(t *testing.T) { test(t, mode) })
	}
}

// tail opens a tail as soon as no other reader has the slot.
func tail(t testing.TB, s *pgstore.Store) store.OutboxTail {
	t.Helper()
	var tail store.OutboxTail
	waitFor(t, func() bool {
		var err error
		if tail, err = s.TailOutbox(t.Context()); err != nil && !strings.Contains(err.Error(), once.ErrConflict.Error()) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { closeTail(t, tail) })
	return tail
}

func closeTail(t testing.TB, tail store.OutboxTail) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if err := tail.Close(ctx); err != nil {
		t.Error(err)
	}
}

// begin opens a transaction that has put messages.
func (f *logFixture) begin(t testing.TB, ids ...string) pgx.Tx {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		err = f.log.PutTx(t.Context(), tx, messages(ids...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func (f *logFixture) put(t testing.TB, ids ...string) {
	t.Helper()
	commitTx(t, f.begin(t, ids...))
}

func commitTx(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// receive waits for so many messages, and for no more.
func receive(t testing.TB, tail store.OutboxTail, n int) (all []store.Outgoing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for len(all) < n {
		ms, err := tail.Receive(ctx, n-len(all))
		if err != nil {
			t.Fatalf("%d messages, want %d: %v", len(all), n, err)
		}
		if len(ms) == 0 || len(ms) > n-len(all) {
			t.Fatalf("%d messages at once", len(ms))
		}
		all = append(all, ms...)
	}
	return all
}

func idsOf(ms []store.Outgoing) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.Message.ID)
	}
	return ids
}

func wantReceived(t testing.TB, tail store.OutboxTail, ids ...string) []store.Outgoing {
	t.Helper()
	ms := receive(t, tail, len(ids))
	for i, id := range idsOf(ms) {
		if id != ids[i] {
			t.Fatalf("received %q, want %q, as the %d. of %d", id, ids[i], i+1, len(ids))
		}
	}
	return ms
}

// wantNothing wants that what is put now is what comes next, and ends it.
func (f *logFixture) wantNothing(t testing.TB, tail store.OutboxTail) {
	t.Helper()
	f.put(t, "end")
	sendOff(t, tail, wantReceived(t, tail, "end")...)
}

func sendOff(t testing.TB, tail store.OutboxTail, ms ...store.Outgoing) {
	t.Helper()
	if err := tail.Sent(t.Context(), ms, store.Delete); err != nil {
		t.Fatal(err)
	}
}

// settled waits until everything is confirmed.
func (f *logFixture) settled(t testing.TB) {
	t.Helper()
	must(t, f.admin, `INSERT INTO `+f.effects()+` VALUES ('something else')`)
	f.passes(t, f.end(t))
}

func (f *logFixture) end(t testing.TB) (end string) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		t.Fatal(err)
	}
	return end
}

// commit commits, and returns the end of the commit record: what a reader
// confirms when all messages up to it are done. While none is open, a reader
// confirms any place, even one between the messages and their commit.
func (f *logFixture) commit(t testing.TB, tx pgx.Tx) (end string) {
	t.Helper()
	var xid, from string
	err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text, pg_current_wal_insert_lsn()::text`).Scan(&xid, &from)
	if err != nil {
		t.Fatal(err)
	}
	commitTx(t, tx)
	must(t, f.admin, `CREATE EXTENSION IF NOT EXISTS pg_walinspect`)
	err = f.admin.QueryRow(t.Context(), `SELECT end_lsn::text FROM pg_get_wal_records_info($1::text::pg_lsn, pg_current_wal_flush_lsn())
WHERE resource_manager = 'Transaction' AND record_type = 'COMMIT' AND xid = $2::text::xid`, from, xid).Scan(&end)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// passes waits until a place of the log is confirmed.
func (f *logFixture) passes(t testing.TB, place string) {
	t.Helper()
	waitFor(t, func() bool { return f.slotIs(t, `confirmed_flush_lsn >= '`+place+`'`) })
}

func (f *logFixture) slotIs(t testing.TB, what string) (is bool) {
	t.Helper()
	slot, err := f.log.OutboxSlot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = f.admin.QueryRow(t.Context(), `SELECT `+what+` FROM pg_replication_slots WHERE slot_name = $1`, slot.Name).Scan(&is)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// kill ends the server's side of the reader's connection.
func (f *logFixture) kill(t testing.TB) {
	t.Helper()
	slot, err := f.log.OutboxSlot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, slot.Name)
}

func (f *logFixture) rows(t testing.TB, where string) (n int) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM `+f.outbox()+` WHERE `+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The order is that of commits, although a row gets its number when it is
// inserted.
func TestLogHasTheOrderOfCommits(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		tail := tail(t, f.log)
		first, second, third := f.begin(t, "a", "b"), f.begin(t, "c"), f.begin(t, "never")
		commitTx(t, second)
		sendOff(t, tail, wantReceived(t, tail, "c")...)
		if err := third.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		commitTx(t, first)
		sendOff(t, tail, wantReceived(t, tail, "a", "b")...)
		f.wantNothing(t, tail)
		waitFor(t, func() bool { return f.rows(t, "true") == 0 })
	})
}

func TestLogKeepsAllOfAMessage(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		tail := tail(t, f.log)
		want := broker.Message{ID: "ü \"1\"", Topic: "t<&>", OrderingKey: "k\\", Body: []byte("a\nb\x00\xff\n"),
			Header: map[string]string{"x": "y\\ \"ü", "z": ""}, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))}
		tx := f.begin(t)
		before := time.Now()
		err := f.log.PutTx(t.Context(), tx, []store.Outgoing{{Message: want}, {Message: broker.Message{ID: "2", Topic: "t"}}})
		if err != nil {
			t.Fatal(err)
		}
		commitTx(t, tx)
		ms := receive(t, tail, 2)
		got := ms[0].Message
		if !got.Time.Equal(want.Time) || !bytes.Equal(got.Body, want.Body) || fmt.Sprint(got.Header) != fmt.Sprint(want.Header) ||
			got.ID != want.ID || got.Topic != want.Topic || got.OrderingKey != want.OrderingKey {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := ms[1].Message; len(got.Body) > 0 || !got.Time.IsZero() || len(got.Header) > 0 {
			t.Errorf("got %+v", got)
		}
		for _, m := range ms {
			if m.Lane != store.Lane(&m.Message) || m.State != store.Pending || m.LogPlace == 0 || (m.Seq != 0) != (mode == pgstore.OutboxRowsByLog) {
				t.Errorf("got %+v", m)
			}
			if d := m.Created.Sub(before); d < -time.Minute || d > time.Minute {
				t.Errorf("it was put %v away", d)
			}
		}
		sendOff(t, tail, ms...)
	})
}

// Nothing after an open message is confirmed, and what was confirmed is not
// delivered again.
func TestCrashOfTheReaderLosesNothing(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		first := tail(t, f.log)
		last := f.begin(t, "d") // whose row has the lowest number
		a := f.begin(t, "a")
		must(t, f.admin, `INSERT INTO `+f.effects()+` VALUES ('x')`)
		f.passes(t, f.end(t)) // a place between the message and its commit
		place := f.commit(t, a)
		f.put(t, "b")
		f.put(t, "c")
		commitTx(t, last)
		ms := wantReceived(t, first, "a", "b", "c", "d")
		sendOff(t, first, ms[0], ms[2])
		f.passes(t, place)
		f.kill(t)
		waitFor(t, func() bool { _, err := first.Receive(t.Context(), 1); return err != nil })
		second := tail(t, f.log)
		if mode == pgstore.OutboxLogOnly {
			ms = wantReceived(t, second, "b", "c", "d")
		} else {
			ms = wantReceived(t, second, "b", "d") // the row of c is gone
		}
		sendOff(t, second, ms...)
		f.settled(t)
		closeTail(t, second)
		third := tail(t, f.log)
		f.wantNothing(t, third)
	})
}

// A transaction is confirmed as a whole. Rows show which of its messages were
// done; messages without rows are all delivered again.
func TestATransactionIsConfirmedAsAWhole(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		first := tail(t, f.log)
		ids := make([]string, 3000)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		f.put(t, ids...)
		ms := wantReceived(t, first, ids...)
		sendOff(t, first, ms[:2000]...)
		closeTail(t, first)
		second := tail(t, f.log)
		if mode == pgstore.OutboxRowsByLog {
			ids = ids[2000:]
		}
		sendOff(t, second, wantReceived(t, second, ids...)...)
		f.settled(t)
		f.wantNothing(t, second)
	})
}

// While nothing is put, the log of all others must not pile up.
func TestAnIdleReaderConfirmsTheLog(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["wal_sender_timeout"] = "9s" // a reader tells what it has received in a third of that
	})
	tail := tail(t, f.log)
	var before string
	for range 3 {
		must(t, f.admin, `INSERT INTO `+f.effects()+` SELECT 'x' FROM generate_series(1, 5000)`)
		before = f.end(t)
		f.passes(t, before)
	}
	waitFor(t, func() bool {
		must(t, f.admin, `CHECKPOINT`)
		return f.slotIs(t, `restart_lsn >= '`+before+`'`)
	})
	f.put(t, "a")
	ms := wantReceived(t, tail, "a") // and is not marked as sent
	held := f.end(t)
	must(t, f.admin, `INSERT INTO `+f.effects()+` SELECT 'x' FROM generate_series(1, 5000)`)
	until := f.end(t)
	waitFor(t, func() bool {
		return f.slotIs(t, `EXISTS (SELECT FROM pg_stat_replication WHERE pid = active_pid AND write_lsn >= '`+until+`')`)
	})
	// The place of the message may be confirmed: only its commit must not be.
	if f.slotIs(t, `confirmed_flush_lsn > '`+held+`'`) {
		t.Errorf("more is confirmed than %s", held)
	}
	slot, err := f.log.OutboxSlot(t.Context())
	if err != nil || !slot.Active || slot.Lag < 100_000 || slot.Retained < slot.Lag || slot.Status != "reserved" || slot.Safe != -1 {
		t.Errorf("got %+v, %v", slot, err)
	}
	sendOff(t, tail, ms...)
	f.passes(t, until)
}

func TestOneReaderAtATime(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		other := pgstore.New(pool(t, server(t)), &pgstore.Options{Schema: f.schema, Outbox: mode})
		first := tail(t, f.log)
		if _, err := other.TailOutbox(t.Context()); err == nil {
			t.Fatal("two readers")
		} else {
			wantError(t, err, once.ErrConflict)
		}
		closeTail(t, first)
		second, err := other.TailOutbox(t.Context()) // at once
		if err != nil {
			t.Fatal(err)
		}
		f.put(t, "a")
		f.kill(t)
		third := tail(t, f.log)
		sendOff(t, third, wantReceived(t, third, "a")...)
		if _, err := second.Receive(t.Context(), 1); err == nil { // it may have received a before it broke
			_, err = second.Receive(t.Context(), 1)
			if err == nil {
				t.Error("a reader without a connection goes on")
			}
		}
		closeTail(t, second)
		f.wantNothing(t, third)
	})
}

func TestReceiveWaitsAsLongAsItsContext(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	tail := tail(t, f.log)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := tail.Receive(ctx, 1)
	wantError(t, err, context.DeadlineExceeded)
	f.wantNothing(t, tail) // and is not broken
	closeTail(t, tail)
	_, err = tail.Receive(t.Context(), 1)
	if err == nil {
		t.Error("a closed tail is read")
	}
}

// The log delivers only pending rows, also those that other programs insert.
func TestLogPassesOverOtherRows(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	tail := tail(t, f.log)
	tx := f.begin(t)
	delayed := messages("later")
	delayed[0].Delay = time.Hour
	if err := f.log.PutTx(t.Context(), tx, delayed); err != nil {
		t.Fatal(err)
	}
	commitTx(t, tx)
	must(t, f.admin, `INSERT INTO `+f.outbox()+` (id, topic, state) VALUES ('held', 't', 2), ('stuck', 't', 3)`)
	must(t, f.admin, `INSERT INTO `+f.outbox()+` (id, topic) VALUES ('foreign', 't')`)
	sendOff(t, tail, wantReceived(t, tail, "foreign")...)
	if n := f.rows(t, "state > 0"); n != 3 {
		t.Errorf("%d other rows, want 3", n)
	}
}

// In mode LogOnly, messages with a delay are rows first, and other programs may
// write to the log.
func TestLogOnlyTakesForeignMessages(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	tail := tail(t, f.log)
	tx := f.begin(t)
	delayed := messages("later", "now")
	delayed[0].Delay = time.Hour
	if err := f.log.PutTx(t.Context(), tx, delayed); err != nil {
		t.Fatal(err)
	}
	commitTx(t, tx)
	sendOff(t, tail, wantReceived(t, tail, "now")...)
	if n := f.rows(t, "state = 1 AND id = 'later'"); n != 1 || f.rows(t, "true") != 1 {
		t.Errorf("%d delayed", n)
	}
	prefix := f.schema + ".once_outbox.1"
	emit := `SELECT pg_logical_emit_message($1, $2::text, convert_to($3, 'UTF8'))`
	must(t, f.admin, emit, true, prefix, `{"id":"1","topic":"t","extra":1}`+"\nbody")
	must(t, f.admin, emit, false, prefix, `{"id":"2","topic":"t","key":"k"}`+"\n")
	must(t, f.admin, emit, true, prefix+"0", `{"id":"3","topic":"t"}`+"\n")
	ms := wantReceived(t, tail, "1", "2")
	if string(ms[0].Message.Body) != "body" || ms[1].Message.OrderingKey != "k" {
		t.Errorf("got %+v", ms)
	}
	sendOff(t, tail, ms...)
	f.settled(t)
}

// What cannot be read must not hold up the rest, and not be lost.
func TestUnreadableMessagesAreSetAside(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		tail := tail(t, f.log)
		if mode == pgstore.OutboxRowsByLog {
			must(t, f.admin, `INSERT INTO `+f.outbox()+` (id, topic, header) VALUES ('a', 't', 'no JSON')`)
		} else {
			for _, content := range []string{"no JSON\n", "{}\n", `{"id":"x","topic":"\u0000"}` + "\n", "no line"} {
				must(t, f.admin, `SELECT pg_logical_emit_message(true, $1, $2)`, f.schema+".once_outbox.1", content)
			}
		}
		f.wantNothing(t, tail)
		want := map[pgstore.OutboxMode]int{pgstore.OutboxRowsByLog: 1, pgstore.OutboxLogOnly: 4}[mode]
		if n := f.rows(t, "state = 3 AND reason <> ''"); n != want || f.rows(t, "state <> 0") != want {
			t.Errorf("%d are stuck, want %d", n, want)
		}
		f.settled(t)
	})
}

func TestMessagesSetAsideAreRows(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		first := tail(t, f.log)
		f.put(t, "a", "b", "c")
		ms := wantReceived(t, first, "a", "b", "c")
		for i := range ms[:2] {
			ms[i].State, ms[i].Attempts, ms[i].Reason = store.Held, 3, "reason \x00\xff"
		}
		ms[1].State = store.Stuck
		if err := first.SetAside(t.Context(), ms[:2]); err != nil {
			t.Fatal(err)
		}
		sendOff(t, first, ms[2])
		f.settled(t)
		f.kill(t)
		second := tail(t, f.log)
		f.wantNothing(t, second)
		for state, id := range map[store.OutgoingState]string{store.Held: "a", store.Stuck: "b"} {
			page, err := f.log.Outgoing(t.Context(), store.OutgoingQuery{State: state})
			if err != nil || len(page) != 1 {
				t.Fatalf("%d are %v; %v", len(page), state, err)
			}
			if m := page[0]; m.Message.ID != id || m.Attempts != 3 || !strings.HasPrefix(m.Reason, "reason ") ||
				string(m.Message.Body) != "body of "+id || m.Message.OrderingKey != "k" || m.Lane != store.Lane(&m.Message) || m.Changed.IsZero() {
				t.Errorf("got %+v", m)
			}
		}
		if n := f.rows(t, "true"); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
	})
}

func TestLogEndsRowsAsAsked(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	tail := tail(t, f.log)
	f.put(t, "a", "b")
	ms := wantReceived(t, tail, "a", "b")
	if err := tail.Sent(t.Context(), ms[:1], store.Keep); err != nil {
		t.Fatal(err)
	}
	if err := tail.Sent(t.Context(), ms[1:], store.Archive); err != nil {
		t.Fatal(err)
	}
	if n := f.rows(t, "state = 4 AND id = 'a'"); n != 1 || f.rows(t, "true") != 1 {
		t.Errorf("%d are kept", n)
	}
	f.settled(t)
}
