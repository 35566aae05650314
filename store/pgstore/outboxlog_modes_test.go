package pgstore_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5/pgconn"
)

// putBy puts messages as a process in a mode does.
func (f *logFixture) putBy(t testing.TB, mode pgstore.OutboxMode, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := f.commitPut(t, f.mode(mode), id); err != nil {
			t.Fatal(err)
		}
	}
}

// crash breaks the connection of a reader, and waits until the slot has no
// reader.
func (f *logFixture) crash(t testing.TB, tail store.OutboxTail) {
	t.Helper()
	f.kill(t)
	closeTail(t, tail)
}

// Rows and messages of the log are delivered in the order of their commits, in
// whatever modes processes put and read. That holds even if a reader crashes
// before it is done with the rows that are older than the slot.
func TestTheOrderOfCommitsHoldsAcrossModes(t *testing.T) {
	const table, rows, only = pgstore.OutboxTable, pgstore.OutboxRowsByLog, pgstore.OutboxLogOnly
	for _, readers := range [][]pgstore.OutboxMode{{only, rows, only}, {only, only, table}, {only, table, rows}, {rows, only, table}} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			f := newLog(t, table)
			f.putBy(t, table, "1", "2")
			writer, result := f.openBesideWriter(t, f.mode(readers[0]))
			f.putBy(t, table, "3")
			f.putBy(t, rows, "4")
			if err := writer.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			o := <-result
			if o.err != nil {
				t.Fatal(o.err)
			}
			if readers[0] == rows { // a process that waits for the reader sets the mark for messages without rows
				_, err := f.mode(only).TailOutbox(t.Context())
				wantError(t, err, once.ErrConflict)
			}
			f.putBy(t, only, "5")
			f.putBy(t, table, "6")
			f.putBy(t, only, "7")
			f.putBy(t, rows, "8")
			all := []string{"1", "2", "3", "4", "5", "6", "7", "8"}
			order := wantAnyOrder(t, o.tail, all, 4) // rows older than the slot are delivered lane by lane
			f.crash(t, o.tail)

			second := tail(t, f.mode(readers[1]))
			ms := wantReceived(t, second, order...)
			sendOff(t, second, ms[:2]...)
			f.crash(t, second)

			third := tail(t, f.mode(readers[2]))
			sendOff(t, third, wantReceived(t, third, order[2:]...)...)
			f.putBy(t, only, "9")
			f.putBy(t, table, "10")
			sendOff(t, third, wantReceived(t, third, "9", "10")...)
			f.settled(t)
			if n := f.rows(t, "true"); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}

// wantAnyOrder receives messages, the first n of them in any order, and returns
// their order.
func wantAnyOrder(t testing.TB, tail store.OutboxTail, ids []string, first int) []string {
	t.Helper()
	order := idsOf(receive(t, tail, len(ids)))
	sorted := append(slices.Sorted(slices.Values(order[:first])), order[first:]...)
	if !slices.Equal(sorted, ids) {
		t.Fatalf("received %q, want %q, the first %d in any order", order, ids, first)
	}
	return order
}

// While the log is read, a relay with OutboxTable publishes no pending row of
// the table, and makes no row pending.
func TestTableModePublishesNothingThatTheLogDelivers(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	table := f.mode(pgstore.OutboxTable)
	every := make([]int, store.Lanes)
	for i := range every {
		every[i] = i
	}
	pending := func() (ids []string) {
		t.Helper()
		for _, q := range []store.OutgoingQuery{{Lanes: every, Unlogged: true}, {Heads: true, Unlogged: true}} {
			ms, err := table.Outgoing(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, idsOf(ms)...)
		}
		return ids
	}
	wake := func(to store.OutgoingState, want int) {
		t.Helper()
		waitFor(t, func() bool {
			n, _, err := table.WakeDelayed(t.Context(), [16]byte{}, to, 10)
			if err != nil {
				t.Fatal(err)
			}
			return n == want
		})
	}
	f.putBy(t, pgstore.OutboxTable, "a")
	if got := pending(); len(got) != 2 || table.LogsRows() {
		t.Errorf("before: %q", got)
	}
	first := tail(t, f.log)
	if got := pending(); len(got) != 0 || !table.LogsRows() {
		t.Errorf("the log's rows are published from the table: %q", got)
	}
	ms := messages("b")
	ms[0].Delay = time.Millisecond
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		err = table.PutTx(t.Context(), tx, ms)
	}
	if err != nil {
		t.Fatal(err)
	}
	commitTx(t, tx)
	must(t, f.admin, `SELECT pg_sleep(0.01)`)
	wake(store.Pending, 0)
	if n := f.rows(t, "state = 1"); n != 1 {
		t.Errorf("%d rows are delayed", n)
	}
	wake(store.Held, 1)
	sendOff(t, first, wantReceived(t, first, "a")...)
	f.settled(t)
	closeTail(t, first)
	f.putBy(t, pgstore.OutboxTable, "c")
	waitFor(t, func() bool { return table.ResetOutboxSlot(t.Context()) == nil })
	if got := pending(); len(got) != 2 || got[0] != "c" || table.LogsRows() {
		t.Errorf("after: %q", got)
	}
}

// A process with OutboxTable creates no slot. It drops one that others have
// left behind once that holds only rows.
func TestTableModeDropsAnUnfinishedSlot(t *testing.T) {
	f := newLog(t, pgstore.OutboxRowsByLog)
	table := f.mode(pgstore.OutboxTable)
	closeTail(t, tail(t, f.log))
	f.lose(t)
	waitFor(t, func() bool {
		tail, err := table.TailOutbox(t.Context())
		if tail != nil {
			t.Fatal("it reads a log that is lost")
		}
		return err == nil
	})
	ms, err := table.Outgoing(t.Context(), store.OutgoingQuery{Lanes: []int{0}, Unlogged: true})
	if err != nil || len(ms) != 0 || table.LogsRows() {
		t.Errorf("got %v, %v, and the log is still to be read", ms, err)
	}
}

// A slot is not dropped while it holds messages that have no row.
func TestResetRefusesToLoseMessages(t *testing.T) {
	f := newLog(t, pgstore.OutboxLogOnly)
	first := tail(t, f.log)
	f.wantNothing(t, first)
	f.settled(t)
	closeTail(t, first)
	f.put(t, "a", "b")
	f.putBy(t, pgstore.OutboxTable, "c")
	refused := func() (err error) {
		waitFor(t, func() bool { // the server notices a moment later that the reader has gone
			err = f.log.ResetOutboxSlot(t.Context())
			var refused *pgconn.PgError
			return !errors.As(err, &refused)
		})
		return err
	}
	err := refused()
	wantError(t, err, once.ErrConflict)
	wantText(t, err, "2 messages are in the log and nowhere else")
	second := tail(t, f.mode(pgstore.OutboxTable))
	sendOff(t, second, wantReceived(t, second, "a", "b", "c")...)
	f.settled(t)
	closeTail(t, second)
	if err := refused(); err != nil {
		t.Fatal(err)
	}
}
