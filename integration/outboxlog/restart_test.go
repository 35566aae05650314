//go:build linux

// Package outboxlog tests readers of PostgreSQL's log on a server of their own,
// while it is restarted, its network is cut, a standby is missing, or the log is
// removed.
package outboxlog

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5/pgxpool"
)

type world struct {
	*pgstore.Store
	instance *server.Instance
	pool     *pgxpool.Pool
}

func newWorld(t *testing.T, i *server.Instance, mode pgstore.OutboxMode, through string) *world {
	t.Helper()
	w := &world{instance: i}
	var err error
	if w.pool, err = pgxpool.New(t.Context(), i.DSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.Store = pgstore.New(w.pool, &pgstore.Options{Prefix: fmt.Sprintf("m%d_", mode), Outbox: mode, SlotServer: through})
	if err := w.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func start(t *testing.T) *server.Instance {
	t.Helper()
	server.Need(t, server.Postgres)
	i, err := server.StartPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func (w *world) put(t *testing.T, ids ...string) {
	t.Helper()
	if err := w.tryPut(t.Context(), ids...); err != nil {
		t.Fatal(err)
	}
}

func (w *world) tryPut(ctx context.Context, ids ...string) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var ms []store.Outgoing
	for _, id := range ids {
		ms = append(ms, store.Outgoing{Message: broker.Message{ID: id, Topic: "t"}})
	}
	if err := w.PutTx(ctx, tx, ms); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (w *world) tail(t *testing.T) (tail store.OutboxTail) {
	t.Helper()
	proof.Await(t, "a tail", func() (ok bool) {
		var err error
		if tail, err = w.TailOutbox(t.Context()); err != nil {
			t.Log(err)
		}
		return err == nil
	})
	t.Cleanup(func() { _ = tail.Close(context.Background()) })
	return tail
}

func receive(t *testing.T, tail store.OutboxTail, ids ...string) []store.Outgoing {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proof.Patience)
	defer cancel()
	var all []store.Outgoing
	for len(all) < len(ids) {
		ms, err := tail.Receive(ctx, len(ids)-len(all))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			if m.Message.ID != "ready" || ids[0] == "ready" { // it may be delivered again after a restart
				all = append(all, m)
			}
		}
	}
	for i := range all {
		if all[i].Message.ID != ids[i] {
			t.Fatalf("received %q, want %q", all[i].Message.ID, ids[i])
		}
	}
	return all
}

func (w *world) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := w.pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(sql, err)
	}
}

var modes = map[string]pgstore.OutboxMode{"rows": pgstore.OutboxRowsByLog, "log only": pgstore.OutboxLogOnly}

// A restart, clean or by force, breaks the tail and loses no message.
func TestARestartLosesNothing(t *testing.T) {
	i := start(t)
	for name, mode := range modes {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " killed ", kill), func(t *testing.T) {
				w := newWorld(t, i, mode, "")
				defer w.pool.Close()
				first := w.tail(t)
				w.put(t, "a")
				w.put(t, "b")
				w.put(t, "c")
				ms := receive(t, first, "a", "b", "c")
				if err := first.Sent(t.Context(), []store.Outgoing{ms[0], ms[2]}, store.Delete); err != nil {
					t.Fatal(err)
				}
				if kill {
					if err := i.Kill(); err != nil {
						t.Fatal(err)
					}
				}
				if err := i.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := first.Receive(t.Context(), 1); err == nil {
					t.Error("the tail is not broken")
				}
				if err := first.Close(t.Context()); err != nil {
					t.Error(err)
				}
				second := w.tail(t)
				w.put(t, "d")
				seen := make(map[string]bool)
				for !seen["d"] {
					ms, err := second.Receive(t.Context(), 10)
					if err != nil {
						t.Fatal(err)
					}
					for _, m := range ms {
						seen[m.Message.ID] = true
					}
					if err := second.Sent(t.Context(), ms, store.Delete); err != nil {
						t.Fatal(err)
					}
				}
				if !seen["b"] {
					t.Error("b is lost")
				}
				if mode == pgstore.OutboxRowsByLog && !kill && (seen["a"] || seen["c"]) {
					t.Error("messages whose rows have ended are delivered again")
				}
				if mode == pgstore.OutboxRowsByLog {
					var n int
					proof.Await(t, "all rows end", func() bool {
						return w.pool.QueryRow(t.Context(), `SELECT count(*) FROM m1_outbox`).Scan(&n) == nil && n == 0
					})
				}
				if err := second.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if err := w.ResetOutboxSlot(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A relay that does not receive does not keep the server from shutting down,
// however much log waits for it.
func TestServerShutsDownUnderASlowRelay(t *testing.T) {
	i := start(t)
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, i, mode, "")
			first := w.tail(t)
			w.put(t, "ready") // ends the backlog, which is empty
			if err := first.Sent(t.Context(), receive(t, first, "ready"), store.Delete); err != nil {
				t.Fatal(err)
			}
			for n := range 4 {
				tx, err := w.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				m := broker.Message{ID: fmt.Sprint(n), Topic: "t", Body: make([]byte, 16<<20)}
				if err := w.PutTx(t.Context(), tx, []store.Outgoing{{Message: m}}); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := i.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			second := w.tail(t)
			receive(t, second, "0", "1", "2", "3")
		})
	}
}

// hidden returns an outbox with two messages in the log whose rows are not visible
// yet, because a standby is missing. appear ends their commits.
func hidden(t *testing.T) (w *world, first store.OutboxTail, ms []store.Outgoing, put chan error, appear func()) {
	i := start(t)
	w = newWorld(t, i, pgstore.OutboxRowsByLog, "")
	first = w.tail(t)
	w.exec(t, `CREATE TABLE probe ()`)
	w.exec(t, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	w.exec(t, `SELECT pg_reload_conf()`)
	proof.Await(t, "commits wait for the standby", func() bool { // the checkpointer applies the setting, at some time
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := w.pool.Exec(ctx, `INSERT INTO probe DEFAULT VALUES`)
		return err != nil
	})
	put = make(chan error, 2)
	for _, id := range []string{"a", "b"} {
		go func() { put <- w.tryPut(t.Context(), id) }()
	}
	ctx := proof.Soon(t)
	for len(ms) < 2 {
		more, err := first.Receive(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		ms = append(ms, more...)
	}
	var n int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM m1_outbox`).Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d rows are visible, so the test shows nothing; %v", n, err)
	}
	return w, first, ms, put, func() {
		t.Helper()
		alone, err := pgxpool.New(ctx, i.DSN()+"&options=-csynchronous_commit%3Dlocal")
		if err != nil {
			t.Fatal(err)
		}
		defer alone.Close()
		for _, statement := range []string{`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`} {
			if _, err := alone.Exec(ctx, statement); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := <-put; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Close waits for the ends of rows that were hidden when they were published.
func TestCloseWaitsForHiddenRows(t *testing.T) {
	w, first, ms, _, appear := hidden(t)
	ctx := proof.Soon(t)
	if err := first.Sent(ctx, ms[:1], store.Delete); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- first.Close(ctx) }()
	appear()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	receive(t, w.tail(t), ms[1].Message.ID)
}

// While a standby is missing, a message is in the log and its row is hidden. The
// row is ended once it is visible.
func TestHiddenRowsAreEndedLater(t *testing.T) {
	w, first, ms, put, appear := hidden(t)
	ctx := proof.Soon(t)
	sent := func(tail store.OutboxTail, m ...store.Outgoing) {
		if err := tail.Sent(ctx, m, store.Delete); err != nil {
			t.Fatal(err)
		}
	}
	sent(first, ms[0])
	if err := first.Close(ctx); err != nil { // another reader must not count it as done
		t.Fatal(err)
	}
	second := w.tail(t)
	again := receive(t, second, ms[0].Message.ID, ms[1].Message.ID)
	sent(second, again[0])
	set := make(chan error, 1)
	again[1].State = store.Held
	go func() { set <- second.SetAside(ctx, again[1:]) }()
	select {
	case err := <-set:
		t.Fatalf("it was set aside before it could be: %v", err)
	case err := <-put:
		t.Fatalf("the commit did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	appear()
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	proof.Await(t, "one row is held, the other one gone", func() bool {
		var n, held int
		err := w.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 2) FROM m1_outbox`).Scan(&n, &held)
		return err == nil && n == 1 && held == 1
	})
}

// A slow reader loses its slot. Rows are read again, and messages without rows are
// reported as lost.
func TestASlotThatIsInvalidated(t *testing.T) {
	i := start(t)
	w := newWorld(t, i, pgstore.OutboxRowsByLog, "")
	only := newWorld(t, i, pgstore.OutboxLogOnly, "")
	for _, w := range []*world{w, only} {
		tail := w.tail(t)
		w.put(t, "a")
		if err := tail.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(t, `ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'`)
	w.exec(t, `SELECT pg_reload_conf()`)
	proof.Await(t, "the slots are lost", func() bool {
		w.exec(t, `SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))`)
		w.exec(t, `SELECT pg_switch_wal()`)
		w.exec(t, `CHECKPOINT`)
		a, err := w.OutboxSlot(t.Context())
		b, err2 := only.OutboxSlot(t.Context())
		return err == nil && err2 == nil && a.Status == "lost" && b.Status == "lost"
	})
	if lag, err := w.OutboxLag(t.Context()); err != nil || lag.Status != store.LagLost || lag.Active || lag.Retained != 0 {
		t.Errorf("OutboxLag returned %+v, %v", lag, err)
	}
	w.exec(t, `ALTER SYSTEM RESET max_slot_wal_keep_size`)
	w.exec(t, `SELECT pg_reload_conf()`)
	tail := w.tail(t)
	w.put(t, "b")
	receive(t, tail, "a", "b")
	_, err := only.TailOutbox(t.Context())
	if err == nil || !strings.Contains(err.Error(), pgstore.ErrSlotLost.Error()) {
		t.Errorf("got %v", err)
	}
	proof.Await(t, "a writer learns of it", func() bool { return only.tryPut(t.Context(), "c") != nil })
	if err := only.ResetOutboxSlot(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := only.tail(t)
	only.put(t, "d")
	receive(t, fresh, "d")
}

func TestAServerThatIsNotSetUpIsReported(t *testing.T) {
	i := start(t)
	w := newWorld(t, i, pgstore.OutboxRowsByLog, "")
	w.exec(t, `ALTER SYSTEM SET wal_level = replica`)
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	proof.Await(t, "the pool notices", func() bool {
		_, err = w.TailOutbox(t.Context())
		return err != nil && strings.Contains(err.Error(), "wal_level")
	})
	t.Log(err)
	w.exec(t, `ALTER SYSTEM SET wal_level = logical`)
	w.exec(t, `ALTER SYSTEM SET max_replication_slots = 1`)
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	proof.Await(t, "another slot", func() bool { // the pool still has connections to the server before its restart
		_, err := w.pool.Exec(t.Context(), `SELECT pg_create_physical_replication_slot('another')`)
		return err == nil
	})
	proof.Await(t, "too few slots", func() bool {
		_, err = w.TailOutbox(t.Context())
		return err != nil && strings.Contains(err.Error(), "max_replication_slots")
	})
	t.Log(err)
	w.exec(t, `ALTER SYSTEM SET max_wal_senders = 0`)
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	proof.Await(t, "no senders", func() bool {
		_, err = w.TailOutbox(t.Context())
		return err != nil && strings.Contains(err.Error(), "max_wal_senders")
	})
	t.Log(err)
}

// proxy forwards bytes until it is cut.
type proxy struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l}
	t.Cleanup(func() { l.Close(); p.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go io.Copy(in, out)
			go io.Copy(out, in)
		}
	}()
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func TestACutNetworkLosesNothing(t *testing.T) {
	i := start(t)
	p := newProxy(t, i.Addr())
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, i, mode, strings.Replace(i.DSN(), i.Addr(), p.Addr().String(), 1))
			tail := w.tail(t)
			for n := range 5 {
				id := fmt.Sprint(n)
				w.put(t, id)
				receive(t, tail, id)
				p.cut()
				if _, err := tail.Receive(t.Context(), 1); err == nil {
					t.Fatal("nothing broke")
				}
				if err := tail.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				tail = w.tail(t)
				ms := receive(t, tail, id)
				if err := tail.Sent(t.Context(), ms, store.Delete); err != nil {
					t.Fatal(err)
				}
				if err := tail.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				tail = w.tail(t)
			}
		})
	}
}
