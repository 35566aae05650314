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

// lose drops the slot, as a restore or a failover does.
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

// Rows are read again where the log is lost, by themselves and each once.
func TestLostSlotOfRows(t *testing.T) {
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

// Messages that were in the log only are lost with it, and somebody has to know.
func TestLostSlotOfMessages(t *testing.T) {
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
	err = fresh.PutTx(t.Context(), tx, messages("b")) // nobody would read it
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "start a relay before anything is put")
	_ = tx.Rollback(t.Context())
	second := tail(t, f.log)
	err = f.log.ResetOutboxSlot(t.Context())
	wantError(t, err, once.ErrConflict)
	wantText(t, err, "stop all relays first")
	f.wantNothing(t, second)
}

func TestDroppedPublication(t *testing.T) {
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
		for range 20 { // one that was refused is not in the way of the next
			_, err = f.log.TailOutbox(t.Context())
			wantError(t, err, pgstore.ErrSlotLost)
		}
	})
}

// Whatever commits while a slot is made is delivered once: by the snapshot or by the log.
func TestNewSlotAmongWriters(t *testing.T) {
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

// Who changes from the table to the log, and back, loses nothing.
func TestChangingModes(t *testing.T) {
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
	sendOff(t, only, wantReceived(t, only, "c", "d")...) // a row that was put before the mode was changed is not overtaken
	f.settled(t)
	closeTail(t, only)
	f.put(t, "e")

	f.log = f.mode(pgstore.OutboxRowsByLog)
	rows = tail(t, f.log)
	f.put(t, "f")
	sendOff(t, rows, wantReceived(t, rows, "e", "f")...)
	f.wantNothing(t, rows)
}

// What nobody receives waits in the server, and the server knows that the reader lives.
func TestSlowRelay(t *testing.T) {
	inBoth(t, func(t *testing.T, mode pgstore.OutboxMode) {
		// Long enough for a reader that a busy machine lets speak late.
		const limit = 6 * time.Second
		f := newLog(t, mode, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(limit.Milliseconds())
		})
		tail := tail(t, f.log)
		const n = 3
		for i := range n {
			tx := f.begin(t)
			ms := messages(fmt.Sprint(i))
			ms[0].Message.Body = make([]byte, 16<<20)
			if err := f.log.PutTx(t.Context(), tx, ms); err != nil {
				t.Fatal(err)
			}
			commitTx(t, tx)
		}
		start := time.Now()
		waitFor(t, func() bool { return time.Since(start) > limit*4/3 }) // it is the server's clock that has to run
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		for _, id := range ids {
			ms := wantReceived(t, tail, id)
			if len(ms[0].Message.Body) != 16<<20 {
				t.Errorf("%d bytes", len(ms[0].Message.Body))
			}
			sendOff(t, tail, ms...)
		}
		f.settled(t)
	})
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

// A role without the rights, and a slot that is something else's, are said to be that.
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
