package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// place is the transaction in which a step is done.
type place struct {
	context.Context
	tx    pgx.Tx
	store *pgstore.Store
	other *pgstore.Store // on the same tables
	table string
}

type step func(place) error

func (p place) put(ids ...string) error { return p.store.PutTx(p, p.tx, messages(ids...)) }

func (p place) exec(sql string, args ...any) error {
	_, err := p.tx.Exec(p, sql, args...)
	return err
}

func put(ids ...string) step { return func(p place) error { return p.put(ids...) } }
func exec(sql string) step   { return func(p place) error { return p.exec(sql) } }
func prepare(sql string) step {
	return func(p place) error { _, err := p.tx.Prepare(p, "by_name", sql); return err }
}

func forget(name string) step { return func(p place) error { return p.tx.Conn().Deallocate(p, name) } }

func raw(sql string) step {
	return func(p place) error { _, err := p.tx.Conn().Exec(p, sql); return err }
}

func batch(sqls ...string) step {
	return func(p place) error {
		b := new(pgx.Batch)
		for _, sql := range sqls {
			b.Queue(sql)
		}
		return p.tx.SendBatch(p, b).Close()
	}
}

// nested does steps in a nested transaction, except those for the outer one.
func nested(commit bool, steps ...step) step {
	return func(p place) error {
		inner := p
		var err error
		if inner.tx, err = p.tx.Begin(p); err != nil {
			return err
		}
		inner.Context = context.WithValue(p.Context, outerKey{}, p)
		for _, step := range steps {
			if err := step(inner); err != nil {
				return err
			}
		}
		if commit {
			return inner.tx.Commit(p)
		}
		return inner.tx.Rollback(p)
	}
}

type outerKey struct{}

func outer(s step) step { return func(p place) error { return s(p.Value(outerKey{}).(place)) } }

// rewritten replaces the text of a statement.
type rewritten string

func (r rewritten) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

// rewriteTo sends another text than it says.
func rewriteTo(sql string) step {
	return func(p place) error { return p.exec("SELECT 1", rewritten(sql)) }
}

func seen(rows int) step {
	return func(p place) (err error) {
		n := 0
		if err = p.tx.QueryRow(p, "SELECT count(*) FROM "+p.table+" WHERE xmin = pg_current_xact_id()::xid").Scan(&n); err == nil && n != rows {
			err = fmt.Errorf("%d rows are seen, want %d", n, rows)
		}
		return err
	}
}

func byHand(id string) step {
	return func(p place) error {
		return p.exec("INSERT INTO "+strings.ToUpper(p.table)+" (id, topic, ordering_key, body) SELECT $1, 't', 'k', $2",
			id, []byte("body of "+id))
	}
}

func copied(id string) step {
	return func(p place) error {
		_, err := p.tx.CopyFrom(p, strings.Split(p.table, "."), []string{"id", "topic", "body"},
			pgx.CopyFromRows([][]any{{id, "t", []byte("body of " + id)}}))
		return err
	}
}

func queued(ids ...string) step {
	return func(p place) error {
		b := new(pgx.Batch)
		return errors.Join(p.store.QueueOutbox(b, messages(ids...)), p.tx.SendBatch(p, b).Close())
	}
}

func putByAnother(id string) step {
	return func(p place) error { return p.other.PutTx(p, p.tx, messages(id)) }
}

func largeObjects(p place) error {
	objects := p.tx.LargeObjects()
	oid, err := objects.Create(p, 0)
	return errors.Join(err, objects.Unlink(p, oid))
}

// forEachRow does a step for each row while rows are open.
func forEachRow(s step) step {
	return func(p place) error {
		rows, err := p.tx.Query(p, "SELECT generate_series(1, 2)")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := s(p); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

func conn(p place) error { p.tx.Conn(); return nil }

var interleavings = []struct {
	name  string
	steps []step
	want  []string
}{
	{"nothing else", []step{put("a", "b"), put("c")}, []string{"a", "b", "c"}},
	{"a statement", []step{put("a"), exec("SELECT 1"), put("b")}, []string{"a", "b"}},
	{"a setting", []step{put("a"), exec("SET LOCAL lock_timeout = '9s'"), put("b")}, []string{"a", "b"}},
	{"nested, released", []step{put("a"), nested(true, put("b"), put("c")), put("d")}, []string{"a", "b", "c", "d"}},
	{"nested, rolled back", []step{put("a"), nested(false, put("b")), put("c")}, []string{"a", "c"}},
	{"nested twice", []step{put("a"), nested(true, put("b"), nested(false, put("c")), nested(true, put("d"))), put("e")},
		[]string{"a", "b", "d", "e"}},
	{"nested, and the outer one puts", []step{put("a"), nested(true, put("b"), outer(put("c")), put("d")), put("e")},
		[]string{"a", "b", "c", "d", "e"}},
	{"rolled back, and the outer one puts", []step{put("a"), nested(false, outer(put("b"))), put("c")}, []string{"a", "c"}},
	{"a savepoint as text", []step{put("a"), exec("SAVEPOINT s"), put("b"), exec("ROLLBACK TO s"), put("c")}, []string{"a", "c"}},
	{"a savepoint at first", []step{exec("SAVEPOINT s"), put("b"), exec("ROLLBACK TO s"), put("c")}, []string{"c"}},
	{"a savepoint, released", []step{put("a"), exec("savepoint s"), put("b"), exec("RELEASE s"), put("c")}, []string{"a", "b", "c"}},
	{"behind another statement", []step{put("a"), exec("SELECT 1; SAVEPOINT s"), put("b"), exec("ROLLBACK TO s; SELECT 2")}, []string{"a"}},
	{"behind a comment", []step{put("a"), exec("/* SELECT */ SAVEPOINT s"), put("b"), exec("-- x\nROLLBACK TO s")}, []string{"a"}},
	{"in a batch", []step{put("a"), batch("SELECT 1", "SAVEPOINT s"), put("b"), batch("ROLLBACK TO s", "SELECT 1")}, []string{"a"}},
	{"by a name", []step{prepare("SAVEPOINT s"), put("a"), exec("by_name"), put("b"), exec("ROLLBACK TO s"), forget("by_name")}, []string{"a"}},
	{"by a rewriter", []step{put("a"), rewriteTo("SAVEPOINT s"), put("b"), exec("ROLLBACK TO s")}, []string{"a"}},
	{"on the connection", []step{put("a"), raw("SAVEPOINT s"), put("b"), raw("ROLLBACK TO s"), put("c")}, []string{"a", "c"}},
	{"on the connection at first", []step{raw("SAVEPOINT s"), put("b"), raw("ROLLBACK TO s"), put("c")}, []string{"c"}},
	{"on the connection of a nested one", []step{put("a"), nested(false, raw("SAVEPOINT s"), outer(put("b"))), put("c")}, []string{"a", "c"}},
	{"large objects", []step{put("a"), largeObjects, put("b")}, []string{"a", "b"}},
	{"a look", []step{put("a"), seen(1), put("b"), seen(2)}, []string{"a", "b"}},
	{"a row by hand", []step{put("a"), byHand("b"), put("c")}, []string{"a", "b", "c"}},
	{"a row that is copied", []step{put("a"), copied("b"), put("c")}, []string{"a", "b", "c"}},
	{"in a batch of the handler's", []step{put("a"), queued("b", "c"), put("d")}, []string{"a", "b", "c", "d"}},
	{"by another store", []step{put("a"), putByAnother("b"), put("c")}, []string{"a", "b", "c"}},
	{"while rows are open", []step{forEachRow(put("a")), put("b")}, []string{"a", "a", "b"}},
	{"Conn while rows are open", []step{put("a"), forEachRow(conn), exec("SELECT 1")}, []string{"a"}},
	{"many while rows are open", []step{forEachRow(put(many("x", 999)...)), put("a")}, append(append(many("x", 999), many("x", 999)...), "a")},
	{"more than is kept", []step{put(many("x", 999)...), put("a"), put("b")}, append(many("x", 999), "a", "b")},
}

func many(id string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(id, i))
	}
	return ids
}

// doEach does steps in each kind of transaction that a store begins, and
// returns their errors.
func doEach(t *testing.T, f *fixture, steps ...step) map[string]error {
	t.Helper()
	other := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema})
	work := func(ctx context.Context, tx pgx.Tx) error {
		for _, step := range steps {
			if err := step(place{ctx, tx, f.Store, other, f.outbox()}); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make(map[string]error)
	for shape, do := range shapes(once.Policy{}) {
		errs[shape] = do(t.Context(), f.Store, fmt.Sprintf("%x", random()), work)
	}
	_, errs["claimed"] = transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { return work(t.Context(), tx) })
	p, to := opened(t, f, fmt.Sprintf("%x", random()))
	errs["position"] = f.TransactAt(t.Context(), p, to, func(tx pgx.Tx) error { return work(t.Context(), tx) })
	return errs
}

const kinds = 4 // of transactions that doEach begins

// Whatever else a transaction does, it commits the messages that were put, in
// their order, and no others.
func TestPutsAreCommittedWhateverElseIsDone(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			for _, c := range interleavings {
				t.Run(c.name, func(t *testing.T) {
					for kind, err := range doEach(t, f, c.steps...) {
						if err != nil {
							t.Errorf("%s: %v", kind, err)
						}
					}
					var want []string
					for range kinds {
						want = append(want, c.want...)
					}
					f.wantPut(t, want...)
				})
			}
		})
	}
}

// If a savepoint may have been begun unseen before a pending message, the
// transaction fails.
func TestAPutThatCannotBeSentBeforeConnFails(t *testing.T) {
	f := newFixture(t)
	for kind, err := range doEach(t, f, put("a"), forEachRow(conn), raw("SAVEPOINT s"), put("b")) {
		t.Log(kind)
		wantText(t, err, "not sent yet because rows were open")
	}
	f.wantPut(t)
}

// A handler that fails, or that ignores the error of a statement, puts nothing.
func TestPutsOfWorkThatFails(t *testing.T) {
	f := newFixture(t)
	boom := errors.New("boom")
	fail := func(place) error { return boom }
	for name, c := range map[string]struct {
		steps []step
		text  string
	}{
		"at once":         {[]step{put("a"), fail}, "boom"},
		"after work":      {[]step{exec("SELECT 1"), put("a"), fail}, "boom"},
		"after a flush":   {[]step{put("a"), seen(1), put("b"), fail}, "boom"},
		"error ignored":   {[]step{put("a"), func(p place) error { _ = p.exec("SELECT 1 / 0"); return nil }}, "was ignored"},
		"what is refused": {[]step{put("a"), put("")}, "ID"},
	} {
		for kind, err := range doEach(t, f, c.steps...) {
			t.Log(name, kind)
			wantText(t, err, c.text)
		}
		f.wantPut(t)
	}
}

// If the database refuses a message at COMMIT, nothing is committed, and the
// error says why.
func TestPutsThatAreRefusedAtTheEnd(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `ALTER TABLE `+f.outbox()+` ADD CONSTRAINT small CHECK (length(body) < 10)`)
	for kind, err := range doEach(t, f, func(p place) error {
		return errors.Join(f.write(p, p.tx, "effect"), p.put("message 1"))
	}) {
		t.Log(kind)
		wantText(t, err, "the messages that were put were refused, so nothing was committed")
		wantText(t, err, "small")
		if errors.Is(err, once.ErrOutcomeUnknown) {
			t.Error("it is not unknown whether it was committed")
		}
	}
	f.want(t, "effect", 0)
	f.wantPut(t)
}
