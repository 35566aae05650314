package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

var everyLane = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func out(id string) store.Outgoing {
	return store.Outgoing{Message: broker.Message{ID: id, Topic: "orders", OrderingKey: "k", Body: []byte("body")}}
}

func put(t testing.TB, s *sqlstore.Store, db *sql.DB, ms ...store.Outgoing) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer tx.Rollback()
	must(t, s.PutTx(t.Context(), tx, ms))
	must(t, tx.Commit())
}

func inState(t testing.TB, s *sqlstore.Store, state store.OutgoingState) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: state, Lanes: everyLane, Limit: 20_000})
	must(t, err)
	return ms
}

// publishes calls each method of the outbox.
func publishes(t *testing.T, s *sqlstore.Store, db *sql.DB) {
	t.Helper()
	ctx, relay := t.Context(), token("relay")
	later := out("later")
	later.Delay = time.Millisecond
	put(t, s, db, out("1"), out("2"), out("3"), later)
	leases, err := s.LeaseLanes(ctx, relay, time.Hour, everyLane)
	if err != nil || leases.Relays != 1 || leases.Lanes[15].Relay != relay {
		t.Fatalf("LeaseLanes returned %+v, %v", leases, err)
	}
	ms := inState(t, s, store.Pending)
	if len(ms) != 3 {
		t.Fatalf("pending are %+v", ms)
	}
	for i, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		if n, err := s.Sent(ctx, relay, ms[i:i+1], then); err != nil || n != 1 {
			t.Errorf("Sent with ending %d returned %d, %v", then, n, err)
		}
	}
	proof.Await(t, "what is delayed is woken", func() bool {
		n, _, err := s.WakeDelayed(ctx, relay, store.Pending, 10)
		must(t, err)
		return n == 1
	})
	ms = inState(t, s, store.Pending)
	if n, err := s.MoveOutgoing(ctx, relay, ms, store.Stuck); err != nil || n != 1 {
		t.Errorf("MoveOutgoing returned %d, %v", n, err)
	}
	depths, err := s.OutboxDepth(ctx, 10)
	if err != nil || len(depths) != 1 || depths[0].State != store.Stuck || depths[0].Count != 1 {
		t.Errorf("OutboxDepth returned %+v, %v", depths, err)
	}
	if n, err := s.RemoveOutgoing(ctx, [16]byte{}, inState(t, s, store.Stuck)); err != nil || n != 1 {
		t.Errorf("RemoveOutgoing returned %d, %v", n, err)
	}
	proof.Await(t, "what was published is forgotten", func() bool {
		n, err := s.ForgetOutgoing(ctx, 0, 10)
		must(t, err)
		return n == 1
	})
	if n, err := s.ForgetArchived(ctx, time.Hour, 10); err != nil || n != 0 {
		t.Errorf("ForgetArchived of what is older than an hour returned %d, %v", n, err)
	}
	if _, err := s.ForgetArchived(ctx, 0, 0); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("ForgetArchived without a limit returned %v", err)
	}
	proof.Await(t, "what was archived is forgotten", func() bool {
		n, err := s.ForgetArchived(ctx, 0, 10)
		must(t, err)
		return n == 1
	})
	must(t, s.ReleaseLanes(ctx, relay, nil))
}

// Sent sets the isolation level of its next statement. If its context ends
// before that, the next transaction on the connection, which is a handler's,
// has the level of the database all the same.
func TestSentLeavesNoIsolationLevelBehind(t *testing.T) {
	e := engines[2]
	s, db := e.migrated(t, quickSettings(e)...)
	put(t, s, db, out("1"))
	ms, relay := inState(t, s, store.Pending), token("relay")
	_, err := s.LeaseLanes(t.Context(), relay, time.Hour, everyLane)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	pool := hooked(t, db, func(_ context.Context, query string) func() {
		if !strings.HasPrefix(query, "SET TRANSACTION") {
			return func() {}
		}
		return cancel
	})
	pool.SetMaxOpenConns(1)
	relaying := sqlstore.New(pool, e.dialect, nil)
	if _, err := relaying.Sent(ctx, relay, ms, store.Delete); !errors.Is(err, context.Canceled) {
		t.Fatalf("Sent returned %v", err)
	}
	_, err = relaying.Transact(t.Context(), []once.ClaimRequest{request("1", "a")}, doing(func(tx *sql.Tx) error {
		var before, after int
		const rows = "SELECT count(*) FROM effect"
		must(t, tx.QueryRowContext(t.Context(), rows).Scan(&before))
		mustExec(t, db, "INSERT INTO effect (name) VALUES ('other')")
		must(t, tx.QueryRowContext(t.Context(), rows).Scan(&after))
		if before != after {
			t.Errorf("the transaction saw %d rows and then %d, so it is not REPEATABLE READ", before, after)
		}
		return nil
	}))
	must(t, err)
}

// Messages in the archive are forgotten by the time at which they were archived, not
// by that at which they were put.
func TestArchiveIsForgottenInBoundedSteps(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		put(t, s, db, out("1"), out("2"), out("3"), out("4"), out("5"))
		time0 := time.Now()
		proof.Await(t, "they are old", func() bool { return time.Since(time0) > 50*time.Millisecond })
		archived := time.Now()
		if n, err := s.Sent(t.Context(), [16]byte{}, inState(t, s, store.Pending), store.Archive); err != nil || n != 5 {
			t.Fatalf("Sent returned %d, %v", n, err)
		}
		if n, err := s.ForgetArchived(t.Context(), 40*time.Millisecond, 10); err != nil || n != 0 && time.Since(archived) < 40*time.Millisecond {
			t.Errorf("%d were forgotten by when they were put, %v", n, err)
		}
		put(t, s, db, out("6"))
		if n, err := s.Sent(t.Context(), [16]byte{}, inState(t, s, store.Pending), store.Archive); err != nil || n != 1 {
			t.Fatalf("Sent returned %d, %v", n, err)
		}
		all := 0
		proof.Await(t, "all are forgotten", func() bool {
			n, err := s.ForgetArchived(t.Context(), 0, 2)
			must(t, err)
			if n > 2 {
				t.Errorf("%d were forgotten at once, the limit is 2", n)
			}
			all += n
			var left int
			must(t, db.QueryRow("SELECT count(*) FROM once_outbox_archive").Scan(&left))
			return left == 0
		})
		if all > 6 {
			t.Errorf("6 were archived, and %d forgotten", all)
		}
	})
}

// outboxCalls are calls that need the tables of the outbox.
func outboxCalls(t *testing.T, s *sqlstore.Store, tx *sql.Tx) map[string]func() error {
	ctx, ms, relay := t.Context(), []store.Outgoing{out("1")}, token("relay")
	return map[string]func() error{
		"PutTx":           func() error { return s.PutTx(ctx, tx, ms) },
		"LeaseLanes":      func() error { _, err := s.LeaseLanes(ctx, relay, time.Hour, nil); return err },
		"ReleaseLanes":    func() error { return s.ReleaseLanes(ctx, relay, nil) },
		"Outgoing":        func() error { _, err := s.Outgoing(ctx, store.OutgoingQuery{}); return err },
		"Sent":            func() error { _, err := s.Sent(ctx, relay, ms, store.Delete); return err },
		"MoveOutgoing":    func() error { _, err := s.MoveOutgoing(ctx, relay, ms, store.Stuck); return err },
		"WakeDelayed":     func() error { _, _, err := s.WakeDelayed(ctx, relay, store.Pending, 1); return err },
		"RemoveOutgoing":  func() error { _, err := s.RemoveOutgoing(ctx, relay, ms); return err },
		"ForgetOutgoing":  func() error { _, err := s.ForgetOutgoing(ctx, time.Hour, 1); return err },
		"OutboxDepth":     func() error { _, err := s.OutboxDepth(ctx, 1); return err },
		"DecidedOutgoing": func() error { _, err := s.DecidedOutgoing(ctx, false); return err },
	}
}

// examples returns the SQL of docs/outbox-row.md or of a file in examples/outbox.
func examples(t *testing.T, engine string) (all []string) {
	t.Helper()
	if engine != "postgres" {
		file := map[string]string{"sqlite": "sqlite.sql", "mariadb": "mysql.sql"}[engine]
		text, err := os.ReadFile("../../examples/outbox/" + file)
		must(t, err)
		for statement := range strings.SplitSeq(strings.TrimSpace(string(text)), ";\n") {
			all = append(all, strings.TrimSuffix(statement, ";"))
		}
		return all
	}
	text, err := os.ReadFile("../../docs/outbox-row.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## PostgreSQL\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for i, block := range strings.Split(section, "```") {
		if code, ok := strings.CutPrefix(block, "sql\n"); ok && i%2 == 1 {
			all = append(all, strings.TrimSuffix(strings.TrimSpace(code), ";"))
		}
	}
	return all
}

// The statements for programs in other languages insert messages that relays
// read as docs/outbox-row.md says.
func TestRowsOfOtherProgramsArePublished(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		sqls := examples(t, e.name)
		if len(sqls) != 3 {
			t.Fatalf("%d examples: %q", len(sqls), sqls)
		}
		before := time.Now().Add(-time.Minute)
		mustExec(t, db, sqls...)
		ms := inState(t, s, store.Pending)
		if len(ms) != 2 {
			t.Fatalf("pending are %+v", ms)
		}
		least, full := ms[0], ms[1]
		if m := least.Message; least.Lane != 0 || m.ID != "order-1" || m.Topic != "orders" || m.OrderingKey != "" ||
			string(m.Body) != `{"total": 12}` || len(m.Header) != 0 || !m.Time.IsZero() || !least.Changed.IsZero() ||
			least.Created.Before(before) {
			t.Errorf("the least row is %+v", least)
		}
		produced := time.Date(2026, 11, 21, 23, 0, 0, 123_000_000, time.UTC)
		if m := full.Message; full.Lane != store.Lane(&m) || m.OrderingKey != "customer 7" || !m.Time.Equal(produced) ||
			m.Header["content-type"] != "application/json" || string(m.Body) != `{"total": 12}` {
			t.Errorf("the full row is %+v, in lane %d", full, full.Lane)
		}
		later := inState(t, s, store.Delayed)
		if len(later) != 1 || later[0].Message.ID != "order-3" || later[0].Delay < 59*time.Minute ||
			later[0].Delay > time.Hour {
			t.Errorf("delayed are %+v", later)
		}
		relay := token("relay")
		_, err := s.LeaseLanes(t.Context(), relay, time.Hour, everyLane)
		must(t, err)
		if n, err := s.Sent(t.Context(), relay, ms, store.Delete); err != nil || n != 2 {
			t.Errorf("Sent returned %d, %v", n, err)
		}
	})
}

// The database refuses some bad rows. Others cannot be published, and do not
// hold up the rows beside them.
func TestBadRowsOfOtherProgramsBlockNobody(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for name, values := range map[string]string{
			"a lane":              "(id, topic, lane) VALUES ('1', 't', 16)",
			"a negative lane":     "(id, topic, lane) VALUES ('1', 't', -1)",
			"a state":             "(id, topic, state) VALUES ('1', 't', 6)",
			"delayed without due": "(id, topic, state) VALUES ('1', 't', 1)",
			"no id":               "(topic) VALUES ('t')",
			"null for a topic":    "(id, topic) VALUES ('1', NULL)",
		} {
			if _, err := db.Exec("INSERT INTO once_outbox " + values); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
		mustExec(t, db, "INSERT INTO once_outbox (id, topic, header) VALUES ('1', 't', 'x')",
			"INSERT INTO once_outbox (id, topic, produced) VALUES ('2', 't', '2026-11-21 23:00:00')",
			"INSERT INTO once_outbox (id, topic) VALUES ('3', '')",
			"INSERT INTO once_outbox (id, topic) VALUES ('4', 't')")
		ms := inState(t, s, store.Pending)
		if len(ms) != 4 {
			t.Fatalf("pending are %+v", ms)
		}
		for i, want := range []string{"column header", "column produced", "needs an ID and a Topic", ""} {
			err := errors.Join(ms[i].Unopened, ms[i].Message.Check())
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("message %d: %v, want %q", i+1, err, want)
			}
		}
	})
}

// A put may need one statement or several.
func TestPutsOfAnySizeKeepTheirOrder(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		want := 0
		for _, n := range []int{1, 2, 7, 8, 9, 63, 130, 257} {
			ms := make([]store.Outgoing, n)
			for i := range ms {
				ms[i] = out(fmt.Sprintf("%06d", want))
				ms[i].Message.Header = map[string]string{"n": fmt.Sprint(want)}
				want++
			}
			if n > 8 {
				ms[n-1].Delay = time.Hour
			}
			put(t, s, db, ms...)
		}
		ms := append(inState(t, s, store.Pending), inState(t, s, store.Delayed)...)
		if len(ms) != want {
			t.Fatalf("%d messages, want %d", len(ms), want)
		}
		order := make(map[store.OutgoingState]string)
		for _, m := range ms { // which all have one ordering key, so one lane
			if m.Message.ID <= order[m.State] || fmt.Sprintf("%06s", m.Message.Header["n"]) != m.Message.ID {
				t.Fatalf("%+v follows %q", m, order[m.State])
			}
			order[m.State] = m.Message.ID
		}
	})
}

// The store ends these transactions, so relays hear of their messages when they
// can read them.
func TestBellRingsAfterTheCommit(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, _ := e.migrated(t)
		from, to := opened(t, s)
		no := errors.New("no")
		put := func(result error) func(*sql.Tx) error {
			return func(tx *sql.Tx) error {
				return errors.Join(s.PutTx(t.Context(), tx, []store.Outgoing{out("1")}), result)
			}
		}
		for name, c := range map[string]struct {
			do    func() error
			rings bool
		}{
			"Transact": {func() error {
				_, err := s.Transact(t.Context(), []once.ClaimRequest{request("a", "a")}, doing(put(nil)))
				return err
			}, true},
			"Transact that fails": {func() error {
				_, err := s.Transact(t.Context(), []once.ClaimRequest{request("b", "b")}, doing(put(no)))
				return err
			}, false},
			"TransactAt that fails": {func() error { return s.TransactAt(t.Context(), from, to, put(no)) }, false},
			"TransactAt": {func() error {
				from, to := opened(t, s)
				return s.TransactAt(t.Context(), from, to, put(nil))
			}, true},
			"Transact without messages": {func() error {
				nothing := func(*sql.Tx) error { return nil }
				_, err := s.Transact(t.Context(), []once.ClaimRequest{request("c", "c")}, doing(nothing))
				return err
			}, false},
		} {
			ear, err := s.HearOutbox(t.Context())
			must(t, err)
			if err := c.do(); (err == nil) != !strings.Contains(name, "fails") {
				t.Errorf("%s: %v", name, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if !c.rings {
				cancel() // select chooses at random, so 20 waits would still hear a ring
			}
			rung := 0
			for range 20 {
				if ear.Wait(ctx) == nil {
					rung++
					cancel()
				}
			}
			cancel()
			if rung > 1 || (rung == 1) != c.rings {
				t.Errorf("%s rang %d times", name, rung)
			}
			ear.Close()
		}
	})
}
