package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// tailOpened is the result of opening a tail.
type tailOpened struct {
	tail store.OutboxTail
	err  error
}

// openBesideWriter begins to create a slot while a transaction that has written
// is open, for which PostgreSQL waits. It returns when the slot is listed and
// cannot deliver yet.
func (f *logFixture) openBesideWriter(t testing.TB, s *pgstore.Store) (writer pgx.Tx, result chan tailOpened) {
	t.Helper()
	writer, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Rollback(context.Background()) })
	if _, err := writer.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	result = make(chan tailOpened, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	go func() {
		defer cancel()
		tail, err := s.TailOutbox(ctx)
		result <- tailOpened{tail, err}
	}()
	waitFor(t, func() bool {
		var made bool
		err := f.admin.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_replication_slots
			WHERE confirmed_flush_lsn IS NULL AND slot_name LIKE (SELECT pubname FROM pg_publication_tables WHERE schemaname = $1) || '%'`,
			f.schema).Scan(&made)
		return err == nil && made
	})
	return writer, result
}

// commitPut puts a message in a transaction that the caller began, and reports
// whether it was committed.
func (f *logFixture) commitPut(t testing.TB, s *pgstore.Store, id string) error {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if err := s.PutTx(t.Context(), tx, messages(id)); err != nil {
		return err
	}
	return tx.Commit(t.Context())
}

// commitPutWithCommit puts a message that is sent together with COMMIT.
func (f *logFixture) commitPutWithCommit(t testing.TB, s *pgstore.Store, id string) error {
	t.Helper()
	key := once.Key{Operation: "ready", ID: id + fmt.Sprintf("%x", random())}
	_, err := once.DoTx(t.Context(), s, (&once.Operation[int]{Name: key.Operation}).For(key.ID),
		func(ctx context.Context, tx pgx.Tx) (int, error) { return 0, s.PutTx(ctx, tx, messages(id)) })
	return err
}

// Messages are put only once the slot can deliver them. While it is being
// created, it is already listed.
func TestPutWhileTheSlotIsMade(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	writer, result := f.openBesideWriter(t, f.log)
	puts := map[string]func(testing.TB, *pgstore.Store, string) error{"own": f.commitPut, "store's": f.commitPutWithCommit}
	var want []string
	for name, put := range puts {
		err := put(t, f.mode(pgstore.OutboxLogOnly), name)
		if err == nil {
			want = append(want, name)
			continue
		}
		wantError(t, err, once.ErrInvalid)
		wantText(t, err, "start a relay before anything is put")
	}
	if slot, err := f.log.OutboxSlot(t.Context()); err != nil || slot.Ready {
		t.Errorf("the slot that is made is %+v, %v", slot, err)
	}
	if got := lag(t, f.log); got == nil || got.Status != store.LagMissing {
		t.Errorf("whoever watches is told %+v", got)
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := <-result
	if o.err != nil {
		t.Fatal(o.err)
	}
	t.Cleanup(func() { closeTail(t, o.tail) })
	f.put(t, "end")
	wantReceived(t, o.tail, append(want, "end")...)
	if slot, err := f.log.OutboxSlot(t.Context()); err != nil || !slot.Ready {
		t.Errorf("the slot is %+v, %v", slot, err)
	}
}

// If transactions are rolled back while the slot is created, and another one is
// always running, the snapshot of the slot has an xmin larger than its xmax.
func TestSlotMadeBesideRollbacks(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	f.put(t, "before")
	running, result := f.openBesideWriter(t, f.log)
	for range 2 {
		f.waitForWait(t, running)
		next, err := f.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = next.Rollback(context.Background()) })
		if _, err := next.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
			t.Fatal(err)
		}
		if err := running.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		running = next
	}
	o := <-result
	if o.err != nil {
		t.Fatal(o.err)
	}
	t.Cleanup(func() { closeTail(t, o.tail) })
	f.put(t, "after")
	wantReceived(t, o.tail, "before")
	wantReceived(t, o.tail, "after")
	f.wantNothing(t, o.tail)
	if err := running.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// waitForWait waits until a session waits for the end of the transaction.
func (f *logFixture) waitForWait(t testing.TB, tx pgx.Tx) {
	t.Helper()
	var xid string
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::xid::text`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		var waits bool
		err := f.admin.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_locks
			WHERE locktype = 'transactionid' AND transactionid = $1::text::xid AND NOT granted`, xid).Scan(&waits)
		return err == nil && waits
	})
}

// A writer that has checked the slot a moment ago learns at once that it was
// dropped, and that the new one is not ready.
func TestPutAfterTheSlotWasReset(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	first := tail(t, f.log)
	f.put(t, "a")
	sendOff(t, first, wantReceived(t, first, "a")...)
	closeTail(t, first)
	waitFor(t, func() bool { return f.mode(pgstore.OutboxLogOnly).ResetOutboxSlot(t.Context()) == nil }) // so that f.log has checked the slot

	refuses := func(when string) {
		t.Helper()
		for name, put := range map[string]func(testing.TB, *pgstore.Store, string) error{"own": f.commitPut, "store's": f.commitPutWithCommit} {
			err := put(t, f.log, "lost "+name)
			if err == nil {
				t.Errorf("%s, %s: nobody would read it", when, name)
				continue
			}
			wantError(t, err, once.ErrInvalid)
			wantText(t, err, "start a relay before anything is put")
		}
		b := new(pgx.Batch)
		if err := f.log.QueueOutbox(b, messages("lost queued")); err == nil {
			if err := f.pool.SendBatch(t.Context(), b).Close(); err == nil {
				t.Errorf("%s: QueueOutbox: nobody would read it", when)
			}
		}
	}
	refuses("without a slot")
	writer, result := f.openBesideWriter(t, f.mode(pgstore.OutboxLogOnly))
	refuses("while one is made")
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := <-result
	if o.err != nil {
		t.Fatal(o.err)
	}
	t.Cleanup(func() { closeTail(t, o.tail) })
	f.wantNothing(t, o.tail)
}

// A reset waits for the transactions that have put messages, so that none of
// them commits a message that is never read.
func TestResetWaitsForPuts(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	first := tail(t, f.log)
	f.wantNothing(t, first)
	closeTail(t, first)
	tx := f.begin(t, "late")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := f.log.ResetOutboxSlot(ctx); err == nil {
		t.Error("the slot was dropped under a transaction that has put")
	}
	commitTx(t, tx)
	second := tail(t, f.log)
	sendOff(t, second, wantReceived(t, second, "late")...)
}

// Messages of the log are delivered only by a slot of this database whose relay
// knows that messages may be in the log only.
func TestSlotsThatDeliverNothing(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, f *logFixture, slot string){
		"made by hand": func(t *testing.T, f *logFixture, slot string) {
			must(t, f.admin, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
		},
		"temporary": func(t *testing.T, f *logFixture, slot string) {
			conn, err := f.admin.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Hijack().Close(context.Background()) })
			if _, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`, slot); err != nil {
				t.Fatal(err)
			}
		},
		"another plugin": func(t *testing.T, f *logFixture, slot string) {
			must(t, f.admin, `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, slot)
		},
		"another database": func(t *testing.T, f *logFixture, slot string) {
			other := "db_" + f.schema
			must(t, f.admin, `CREATE DATABASE `+other)
			dsn := pool(t, server(t)).Config()
			dsn.ConnConfig.Database = other
			conn, err := pgx.ConnectConfig(t.Context(), dsn.ConnConfig)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _ = conn.Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, slot)
				_ = conn.Close(context.Background())
				_, _ = f.admin.Exec(context.Background(), `DROP DATABASE `+other)
			})
		},
		"of a relay that takes rows to be all": func(t *testing.T, f *logFixture, _ string) {
			closeTail(t, tail(t, f.mode(pgstore.OutboxRowsByLog)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLog(t, pgstore.OutboxLogOnly)
			_, err := f.log.OutboxSlot(t.Context())
			if err == nil {
				t.Fatal("there is a slot")
			}
			lost := strings.Fields(strings.SplitN(err.Error(), "replication slot ", 2)[1])[0]
			make(t, f, strings.TrimSuffix(lost, ":"))
			if name == "made by hand" || name == "temporary" || name == "another plugin" {
				t.Cleanup(func() {
					_, _ = f.admin.Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, strings.TrimSuffix(lost, ":"))
				})
			}
			for _, put := range []func(testing.TB, *pgstore.Store, string) error{f.commitPut, f.commitPutWithCommit} {
				err := put(t, f.log, "lost")
				if err == nil {
					t.Fatal("nobody would read it")
				}
				wantError(t, err, once.ErrInvalid)
			}
		})
	}
}
