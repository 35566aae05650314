package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// messages returns messages with these IDs and one ordering key.
func messages(ids ...string) (ms []store.Outgoing) {
	for _, id := range ids {
		ms = append(ms, store.Outgoing{Message: broker.Message{ID: id, Topic: "t", OrderingKey: "k", Body: []byte("body of " + id)}})
	}
	return ms
}

func (f *fixture) outbox() string { return f.schema + ".once_outbox" }

// wantPut checks that the outbox has messages with these IDs, in the order of
// their numbers, and removes them.
func (f *fixture) wantPut(t testing.TB, ids ...string) {
	t.Helper()
	rows, _ := f.admin.Query(t.Context(), `WITH gone AS (DELETE FROM `+f.outbox()+` RETURNING seq, id, body)
		SELECT CASE convert_from(body, 'UTF8') WHEN 'body of ' || id THEN id ELSE id || ' with another body' END FROM gone ORDER BY seq`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(got, ids) {
		t.Errorf("%.300q were put, want %.300q; %v", got, ids, err)
	}
}

// known makes the store check its tables.
func (f *fixture) known(t testing.TB) {
	t.Helper()
	if _, err := f.Outgoing(t.Context(), store.OutgoingQuery{}); err != nil {
		t.Fatal(err)
	}
}

// lean are the exec modes that do not ask for a description each time.
var lean = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol}

// Messages are sent together with COMMIT.
func TestPutTakesNoRoundTrip(t *testing.T) {
	for _, m := range lean {
		t.Run(m.String(), func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(m), onlyOne)
			f.Mute()
			p, _ := opened(t, f, "a")
			write := func(ctx context.Context, tx pgx.Tx) error { return f.write(ctx, tx, "effect") }
			putAfter := func(work func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
				return func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(work(ctx, tx), f.PutTx(ctx, tx, messages("a", "b")), f.PutTx(ctx, tx, messages("c")))
				}
			}
			ids := 0
			early := func(do guarded, work func(context.Context, pgx.Tx) error) func() error {
				return func() error { ids++; return do(t.Context(), f.Store, fmt.Sprint(ids), putAfter(work)) }
			}
			for name, c := range map[string]struct {
				trips int64
				call  func() error
			}{
				"foreseen, with a statement":     {2, early(shapes(once.Policy{})["foreseen"], write)},
				"not foreseen, with a statement": {2, early(shapes(once.Policy{})["not foreseen"], write)},
				"foreseen":                       {1, early(shapes(once.Policy{})["foreseen"], nothingOf)},
				"not foreseen":                   {1, early(shapes(once.Policy{})["not foreseen"], nothingOf)},
				"claimed": {2, func() error {
					_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { return putAfter(nothingOf)(t.Context(), tx) })
					return err
				}},
				"position": {2, func() error {
					from := p
					p = further(p)
					return f.TransactAt(t.Context(), from, p, func(tx pgx.Tx) error { return putAfter(nothingOf)(t.Context(), tx) })
				}},
				"a transaction and a batch of the caller's": {1, func() error {
					b := new(pgx.Batch)
					b.Queue("begin")
					err := f.QueueOutbox(b, messages("a", "b", "c"))
					b.Queue("commit")
					return errors.Join(err, f.pool.SendBatch(t.Context(), b).Close())
				}},
				"a transaction of the caller's": {4, func() error { // begin, two statements, commit
					return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return putAfter(nothingOf)(t.Context(), tx) })
				}},
			} {
				var trips int64
				for range 3 { // until everything is prepared
					before := w.trips.Load()
					if err := c.call(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					trips = w.trips.Load() - before
					f.wantPut(t, "a", "b", "c")
				}
				if trips > c.trips {
					t.Errorf("%s takes %d round trips, want %d", name, trips, c.trips)
				}
			}
		})
	}
}

// A duplicate that only puts messages is refused at COMMIT.
func TestADuplicatePutsNothing(t *testing.T) {
	f := newFixture(t)
	for shape, do := range shapes(once.Policy{Wait: once.NoWait}) {
		for name, work := range map[string]step{"only messages": put("a"), "a statement": func(p place) error {
			return errors.Join(f.write(p, p.tx, "effect"), p.put("a"))
		}, "messages first": func(p place) error {
			return errors.Join(p.put("a"), f.write(p, p.tx, "effect"))
		}} {
			runs := 0
			call := func(s *pgstore.Store) error {
				return do(t.Context(), s, shape+name, func(ctx context.Context, tx pgx.Tx) error {
					runs++
					_ = work(place{ctx, tx, s, s, f.outbox()})
					return nil
				})
			}
			for range 3 {
				if err := call(f.unused(t)); err != nil {
					t.Errorf("%s, %s: %v", shape, name, err)
				}
			}
			t.Log(shape, name)
			f.wantPut(t, "a")
			if runs != 3 {
				t.Errorf("%s, %s: the handler was entered %d times, want 3: the test did not do what it says", shape, name, runs)
			}
		}
	}
}

// A handler that is called again puts its messages once.
func TestAHandlerThatRunsAgainPutsOnce(t *testing.T) {
	f := newFixture(t)
	f.known(t)
	for shape, do := range shapes(once.Policy{}) {
		runs := 0
		err := do(t.Context(), f.Store, shape, func(ctx context.Context, tx pgx.Tx) error {
			if err := f.PutTx(ctx, tx, messages(fmt.Sprint("run ", runs))); err != nil {
				return err
			}
			if runs++; runs == 1 {
				return errors.New("nothing was sent so far")
			}
			return nil
		})
		if err != nil || runs != 2 {
			t.Errorf("%s: %v after %d runs", shape, err, runs)
		}
		f.wantPut(t, "run 1")
	}
}

// If the connection is lost at COMMIT, the message and the effect are either
// both there or both not.
func TestLostCommitsOfPuts(t *testing.T) {
	for name, lose := range map[string]int32{"request": loseRequest, "reply": loseReply} {
		t.Run(name, func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(pgx.QueryExecModeExec))
			f.Mute()
			w.lose.Store(lose)
			_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
				return errors.Join(f.write(t.Context(), tx, "effect"), f.PutTx(t.Context(), tx, messages("a")))
			})
			wantError(t, err, once.ErrOutcomeUnknown)
			f.want(t, "effect", int(lose)-1)
			f.wantPut(t, messagesOf("a", int(lose)-1)...)
			for shape, do := range shapes(once.Policy{}) {
				w.lose.Store(lose)
				if err := do(t.Context(), f.Store, shape, func(ctx context.Context, tx pgx.Tx) error {
					return f.PutTx(ctx, tx, messages("a"))
				}); err != nil {
					t.Errorf("%s: %v", shape, err)
				}
				f.wantPut(t, "a")
			}
		})
	}
}

func messagesOf(id string, n int) (ids []string) { return slices.Repeat([]string{id}, n) }

// The caller may change its messages after PutTx has returned.
func TestPutKeepsCopies(t *testing.T) {
	f := newFixture(t)
	ms := messages("a")
	ms[0].Message.Header = map[string]string{"color": "red"}
	if _, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
		for range 2 {
			if err := f.PutTx(t.Context(), tx, ms); err != nil {
				return err
			}
		}
		ms[0].Message.ID, ms[0].Message.Header["color"] = "b", "blue"
		copy(ms[0].Message.Body, "something else")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	found, err := f.Outgoing(t.Context(), store.OutgoingQuery{})
	if err != nil || len(found) != 2 {
		t.Fatalf("%d messages, %v", len(found), err)
	}
	for _, m := range found {
		if m.Message.Header["color"] != "red" {
			t.Errorf("the header is %v", m.Message.Header)
		}
	}
	f.wantPut(t, "a", "a")
}

func TestPutNeedsATransactionThatIsOpen(t *testing.T) {
	f := newFixture(t)
	wantError(t, f.PutTx(t.Context(), nil, messages("a")), once.ErrInvalid)
	wantError(t, f.QueueOutbox(nil, messages("a")), once.ErrInvalid)

	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantError(t, f.PutTx(t.Context(), tx, messages("a")), pgx.ErrTxClosed)

	var kept, inner pgx.Tx
	for kind, err := range doEach(t, f, put("a"), func(p place) (err error) {
		kept = p.tx
		if inner, err = p.tx.Begin(p); err != nil {
			return err
		}
		if err := inner.Commit(p); err != nil {
			return err
		}
		wantError(t, f.PutTx(p, inner, messages("b")), pgx.ErrTxClosed)
		return nil
	}) {
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		wantError(t, f.PutTx(t.Context(), kept, messages("c")), pgx.ErrTxClosed)
		wantError(t, f.PutTx(t.Context(), inner, messages("d")), pgx.ErrTxClosed)
	}
	f.wantPut(t, messagesOf("a", kinds)...)
	_, err = transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { kept = tx; return nil })
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, f.PutTx(t.Context(), kept, messages("e")), pgx.ErrTxClosed)
}

// Each call refuses tables of an earlier version in which something is missing
// that it needs.
func TestTablesOfAnEarlierVersionAreRefused(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `DELETE FROM `+f.schema+`.once_schema WHERE version >= (SELECT version FROM `+f.schema+`.once_schema WHERE name = 'outbox')`)
	s := f.again(t)
	_, err := s.Claim(t.Context(), newRequest())
	wantError(t, err, once.ErrInvalid)
	_, err = s.Consumers(t.Context())
	wantError(t, err, once.ErrInvalid)
	_, err = s.Outgoing(t.Context(), store.OutgoingQuery{})
	wantError(t, err, once.ErrInvalid)
	_, err = transact(t.Context(), s, newRequest(), func(tx pgx.Tx) error { return s.PutTx(t.Context(), tx, messages("a")) })
	wantError(t, err, once.ErrInvalid)
	_, err = s.HearOutbox(t.Context())
	wantError(t, err, once.ErrInvalid)
}

// QueueOutbox works in a batch of the caller in each exec mode, with one
// message and with many.
func TestQueueOutboxWorksInEachExecMode(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			for _, ids := range [][]string{{"a"}, {"a", "b"}, many("m", 40)} {
				for _, end := range []string{"commit", "rollback"} {
					b := new(pgx.Batch)
					b.Queue("begin")
					b.Queue("INSERT INTO "+f.effects()+" VALUES ($1)", "effect")
					err := f.QueueOutbox(b, messages(ids...))
					b.Queue(end)
					if err := errors.Join(err, f.pool.SendBatch(t.Context(), b).Close()); err != nil {
						t.Fatal(err)
					}
					if end == "rollback" {
						ids = nil
					}
					f.wantPut(t, ids...)
				}
			}
		})
	}
	f := newFixture(t)
	wantError(t, f.QueueOutbox(new(pgx.Batch), messages("")), once.ErrInvalid)
}

// QueueOutbox seals messages itself: package outbox, which seals for PutTx, is
// not involved.
func TestQueueOutboxSeals(t *testing.T) {
	ring, err := once.NewRing(once.Secret{ID: "a", Bytes: bytes.Repeat([]byte("a"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	sealing := once.Sealing{Ring: ring, Only: once.SealOutbox}
	f := newFixture(t)
	f.Options().Sealing = sealing
	ms := messages("a")
	ms[0].Message.Body, ms[0].Message.Header = []byte("secret body"), map[string]string{"who": "secret name"}
	b := new(pgx.Batch)
	if err := errors.Join(f.QueueOutbox(b, ms), f.pool.SendBatch(t.Context(), b).Close()); err != nil {
		t.Fatal(err)
	}
	found, err := f.Outgoing(t.Context(), store.OutgoingQuery{State: store.Pending})
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	raw := found[0].Message
	if bytes.Contains(raw.Body, []byte("secret")) || raw.Header["who"] != "" {
		t.Errorf("what is stored can be read: %q %v", raw.Body, raw.Header)
	}
	if opened, err := store.OpenOutgoing(&sealing, raw); err != nil || string(opened.Body) != "secret body" || opened.Header["who"] != "secret name" {
		t.Errorf("it is opened as %q %v, %v", opened.Body, opened.Header, err)
	}
	if string(ms[0].Message.Body) != "secret body" {
		t.Error("the message of the caller was changed")
	}
}

// The queries that relays repeat take one round trip.
func TestRelaysTakeOneRoundTrip(t *testing.T) {
	for _, m := range lean {
		t.Run(m.String(), func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(m), onlyOne)
			f.Mute()
			relay := random()
			lanes := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
			if _, err := f.LeaseLanes(t.Context(), relay, 1e10, lanes); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
					return f.PutTx(t.Context(), tx, messages("a", "b"))
				}); err != nil {
					t.Fatal(err)
				}
				before := w.trips.Load()
				ms, err := f.Outgoing(t.Context(), store.OutgoingQuery{Lanes: lanes, Limit: 1000})
				read := w.trips.Load() - before
				if err != nil || len(ms) != 2 {
					t.Fatalf("%d messages, %v", len(ms), err)
				}
				before = w.trips.Load()
				n, err := f.Sent(t.Context(), relay, ms, store.Delete)
				sent := w.trips.Load() - before
				if err != nil || n != 2 {
					t.Fatalf("%d were sent, %v", n, err)
				}
				if read+sent == 2 {
					return
				}
			}
			t.Error("Outgoing and Sent take more than one round trip each")
		})
	}
}
