package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lose drops the slot, as restoring a backup or a failover does.
func (f *logFixture) lose(t testing.TB) {
	t.Helper()
	slot, err := f.log.OutboxSlot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, err := f.admin.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, slot.Name)
		return err == nil
	})
}

// If the log is lost, rows are read again without anyone's help, each once.
func TestRowsAreReadAgainAfterALostSlot(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	first := tail(t, f.log)
	f.put(t, "a")
	sendOff(t, first, wantReceived(t, first, "a")...)
	f.put(t, "b")
	closeTail(t, first)
	f.lose(t)
	f.put(t, "c")
	second := tail(t, f.log)
	f.put(t, "d")
	ms := wantReceived(t, second, "b", "c", "d")
	sendOff(t, second, ms[0], ms[2])
	f.settled(t)
	f.kill(t)
	third := tail(t, f.log) // the backlog was not done
	sendOff(t, third, wantReceived(t, third, "c")...)
	closeTail(t, third)
	fourth := tail(t, f.log)
	f.wantNothing(t, fourth)
	if n := f.rows(t, "true"); n > 1 { // the last one may not be ended yet
		t.Errorf("%d rows are left", n)
	}
}

// If the log is lost, so are messages that were in the log only, and a person
// has to confirm it.
func TestALostSlotOfMessagesIsReported(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	first := tail(t, f.log)
	f.put(t, "a")
	closeTail(t, first)
	f.lose(t)
	for range 2 {
		_, err := f.log.TailOutbox(t.Context())
		wantError(t, err, pgstore.ErrSlotLost)
	}
	if _, err := f.mode(pgstore.OutboxRowsByLog).TailOutbox(t.Context()); !errors.Is(err, pgstore.ErrSlotLost) {
		t.Errorf("got %v", err) // whatever the mode is now
	}
	_, err := f.log.OutboxSlot(t.Context())
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "in a mode that reads the log")
	if err := f.log.ResetOutboxSlot(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := f.mode(pgstore.OutboxLogOnly)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = fresh.PutTx(t.Context(), tx, messages("b")) // no reader would get it
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "start a relay before anything is put")
	_ = tx.Rollback(t.Context())
	second := tail(t, f.log)
	err = f.log.ResetOutboxSlot(t.Context())
	wantError(t, err, once.ErrConflict)
	wantText(t, err, "stop all relays first")
	f.wantNothing(t, second)
}

func TestADroppedPublicationIsNoticed(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		f := newLog(t, mode)
		first := tail(t, f.log)
		f.put(t, "a")
		closeTail(t, first)
		var name string
		err := f.admin.QueryRow(t.Context(), `SELECT pubname FROM pg_publication_tables WHERE schemaname = $1`, f.schema).Scan(&name)
		if err != nil {
			t.Fatal(err)
		}
		must(t, f.admin, `DROP PUBLICATION `+name)
		if mode == pgstore.OutboxRowsByLog {
			second := tail(t, f.log)
			sendOff(t, second, wantReceived(t, second, "a")...)
			f.wantNothing(t, second)
			return
		}
		for range 20 { // a call that was refused does not hold up the next
			_, err = f.log.TailOutbox(t.Context())
			wantError(t, err, pgstore.ErrSlotLost)
		}
	})
}

// What is committed while a slot is being created is delivered once: by the
// snapshot or by the log.
func TestANewSlotDeliversEachCommitOnce(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var put [4]atomic.Int64
	var writers sync.WaitGroup
	for w := range put {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for n := 0; ctx.Err() == nil; n++ {
				tx, err := f.pool.Begin(context.WithoutCancel(ctx))
				if err == nil {
					err = f.log.PutTx(context.WithoutCancel(ctx), tx, messages(fmt.Sprintf("%d-%d", w, n)))
				}
				if err == nil {
					err = tx.Commit(context.WithoutCancel(ctx))
				}
				if err != nil {
					t.Error(err)
					return
				}
				put[w].Add(1)
			}
		}()
	}
	total := func() (n int) {
		for w := range put {
			n += int(put[w].Load())
		}
		return n
	}
	waitFor(t, func() bool { return total() > 500 })
	tail := tail(t, f.log)
	opened := total()
	seen := make(map[string]int)
	take := func(n int) {
		ms, err := tail.Receive(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			seen[m.Message.ID]++
		}
		sendOff(t, tail, ms...)
	}
	for len(seen) < opened+500 {
		take(100)
	}
	stop()
	writers.Wait()
	for len(seen) < total() {
		take(100)
	}
	f.wantNothing(t, tail)
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", id, times)
		}
	}
	waitFor(t, func() bool { return f.rows(t, "true") == 0 })
}

// Changing from the table to the log, and back, loses no message.
func TestChangingTheModeLosesNothing(t *testing.T) {
	f := newLog(t, pgstore.OutboxTable)
	if tail, err := f.log.TailOutbox(t.Context()); tail != nil || err != nil || f.log.LogsRows() {
		t.Errorf("got %v, %v", tail, err)
	}
	f.put(t, "a")
	f.log = f.mode(pgstore.OutboxRowsByLog)
	rows := tail(t, f.log)
	f.put(t, "b")
	sendOff(t, rows, wantReceived(t, rows, "a", "b")...)
	f.put(t, "c")
	closeTail(t, rows)

	f.log = f.mode(pgstore.OutboxLogOnly)
	only := tail(t, f.log)
	f.put(t, "d")
	sendOff(t, only, wantReceived(t, only, "c", "d")...) // a row from before the change is still delivered first
	f.settled(t)
	closeTail(t, only)
	f.put(t, "e")

	f.log = f.mode(pgstore.OutboxRowsByLog)
	rows = tail(t, f.log)
	f.put(t, "f")
	sendOff(t, rows, wantReceived(t, rows, "e", "f")...)
	f.wantNothing(t, rows)
}

// Messages that are not received wait in the server, and the connection stays
// open, since the reader answers the server all the same. A busy machine may let
// it answer too late. So if its connection is closed, the test is repeated with
// twice the timeout of the server. A reader that does not answer while nobody
// receives fails with any timeout.
func TestASlowRelayKeepsItsConnection(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		var err error
		for timeout := 6 * time.Second; timeout <= 48*time.Second; timeout *= 2 {
			if err = receiveAfter(t, mode, timeout); err == nil {
				return
			}
			t.Logf("with a timeout of %v: %v", timeout, err)
		}
		t.Error(err)
	})
}

// receiveAfter receives messages after the server's timeout has passed. It
// returns an error if the reader was closed.
func receiveAfter(t *testing.T, mode pgstore.OutboxMode, timeout time.Duration) error {
	t.Helper()
	f := newLog(t, mode, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(timeout.Milliseconds())
	})
	tail := tail(t, f.log)
	defer closeTail(t, tail)
	const n, size = 3, 16 << 20
	for i := range n {
		tx := f.begin(t)
		ms := messages(fmt.Sprint(i))
		ms[0].Message.Body = make([]byte, size)
		if err := f.log.PutTx(t.Context(), tx, ms); err != nil {
			t.Fatal(err)
		}
		commitTx(t, tx)
	}
	start := time.Now()
	waitFor(t, func() bool { return time.Since(start) > timeout*4/3 })
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for i := range n {
		ms, err := tail.Receive(ctx, 1)
		if err == nil {
			err = tail.Sent(ctx, ms, store.Delete)
		}
		if err != nil {
			return err
		}
		if len(ms) != 1 || ms[0].Message.ID != fmt.Sprint(i) || len(ms[0].Message.Body) != size {
			t.Fatalf("received %d messages instead of message %d with its body", len(ms), i)
		}
	}
	f.settled(t)
	return nil
}

func TestLogOptions(t *testing.T) {
	f := newFixture(t)
	for text, o := range map[string]pgstore.Options{
		"is none of": {Outbox: 3},
		"lower-case": {Slot: "A"},
		"SlotServer": {SlotServer: "host=x port=y"},
	} {
		_, err := pgstore.New(f.pool, &o).TailOutbox(t.Context())
		wantError(t, err, once.ErrInvalid)
		wantText(t, err, text)
	}
	one := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	_, err := pgstore.New(one, &pgstore.Options{Schema: f.schema, Outbox: pgstore.OutboxRowsByLog}).TailOutbox(t.Context())
	wantText(t, err, "MaxConns")
	_, err = pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Prefix: "other_", Outbox: pgstore.OutboxRowsByLog}).TailOutbox(t.Context())
	wantError(t, err, once.ErrInvalid)
}

func TestNamedSlot(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	name := "named_" + f.schema
	f.log = pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Outbox: pgstore.OutboxRowsByLog, Slot: name, SlotServer: server(t)})
	f.wantNothing(t, tail(t, f.log))
	if slot, err := f.log.OutboxSlot(t.Context()); err != nil || slot.Name != name {
		t.Errorf("got %+v, %v", slot, err)
	}
}

// A role without the rights, and a slot of another kind, are reported as such.
func TestLogSaysWhatIsMissing(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	role := "role_" + f.schema
	must(t, f.admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'p'`)
	must(t, f.admin, `GRANT USAGE ON SCHEMA `+f.schema+` TO `+role)
	must(t, f.admin, `GRANT ALL ON ALL TABLES IN SCHEMA `+f.schema+` TO `+role)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
		defer cancel()
		_, _ = f.admin.Exec(ctx, `DROP OWNED BY `+role)
		_, _ = f.admin.Exec(ctx, `DROP ROLE `+role)
	})
	poor := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.User, cfg.ConnConfig.Password = role, "p" })
	s := pgstore.New(poor, &pgstore.Options{Schema: f.schema, Outbox: pgstore.OutboxRowsByLog})
	for _, grant := range []string{"", `ALTER ROLE ` + role + ` REPLICATION`, `GRANT CREATE ON DATABASE postgres TO ` + role} {
		if grant != "" {
			must(t, f.admin, grant)
		}
		_, err := s.TailOutbox(t.Context())
		wantError(t, err, once.ErrInvalid)
		wantText(t, err, "REPLICATION")
	}
	must(t, f.admin, `ALTER TABLE `+f.outbox()+` OWNER TO `+role)
	tail, err := s.TailOutbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closeTail(t, tail)
	must(t, f.admin, `ALTER TABLE `+f.outbox()+` OWNER TO postgres`)
	if err := s.ResetOutboxSlot(t.Context()); err != nil {
		t.Fatal(err)
	}
	slot, other := "other_"+f.schema, store.OutboxLog(pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Outbox: pgstore.OutboxRowsByLog, Slot: "other_" + f.schema}))
	must(t, f.admin, `SELECT pg_create_physical_replication_slot($1)`, slot)
	defer must(t, f.admin, `SELECT pg_drop_replication_slot($1)`, slot)
	_, err = other.TailOutbox(t.Context())
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "another name")
}
