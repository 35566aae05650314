package pgstore_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestForgetDropsPartitions(t *testing.T) {
	f := newPartitioned(t, always)
	for range 3 {
		f.forgotten(t)
	}
	parked, kept := newRequest(), newRequest()
	for r, status := range map[*once.ClaimRequest]once.Status{&parked: once.Parked, &kept: once.Done} {
		rec, err := f.Claim(t.Context(), *r)
		if err != nil {
			t.Fatal(err)
		}
		set := done(rec, "answer")
		set.Status, set.Reason = status, "because"
		if err := f.Settle(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	before := get(t, f, parked.Key)
	if n, err := f.Forget(t.Context(), 100); err != nil || n != 0 { // one of five records is kept for long: too many to move
		t.Errorf("Forget: %d, %v", n, err)
	}
	must(t, f.admin, `UPDATE `+f.records()+` SET key_until = 1, updated = 1 WHERE key = $1`, kept.Key.String())
	must(t, f.admin, `UPDATE `+f.schema+`.once_part SET due = 0`)
	n, err := f.Forget(t.Context(), 2)
	if err != nil || n != 2 { // four were forgotten, and the caller has to call again
		t.Errorf("Forget: %d, %v", n, err)
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.records()); n != 1 {
		t.Errorf("%d records are left", n)
	}
	after := get(t, f, parked.Key)
	if after.Age < before.Age {
		t.Errorf("it got younger: %v, %v", before.Age, after.Age)
	}
	before.Age, before.LeaseLeft = after.Age, after.LeaseLeft
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("moved from\n%+v to\n%+v", before, after)
	}
	if f.number(t, `SELECT count(to_regclass('`+f.schema+`.once_record_1'))`) != 0 || f.partOf(t, parked.Key) == 1 {
		t.Error("the partition is there still")
	}
}

// A record is moved with all of its columns.
func TestAMovedRecordKeepsAllColumns(t *testing.T) {
	f := newPartitioned(t, always)
	r := newRequest()
	r.Fingerprint = []byte("print")
	if _, err := f.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `UPDATE `+f.records()+` SET status = 3, lease_until = 1, outcome = 'x', content_type = 'y', flags = 3, sum = 5, due = 9, outcome_until = 7, reason = 'z'`)
	row := func() (text string) {
		if err := f.admin.QueryRow(t.Context(), `SELECT (to_jsonb(r) - 'part')::text FROM `+f.records()+` r`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := row()
	if _, err := f.Forget(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if after := row(); after != before || f.partOf(t, r.Key) == 1 {
		t.Errorf("moved from\n%s to\n%s", before, after)
	}
}

func TestConcurrentForgetsCountEachRecordOnce(t *testing.T) {
	f := newPartitioned(t, always)
	const keys = 40
	for range keys {
		f.forgotten(t)
	}
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		s := pgstore.New(pool(t, server(t)), &pgstore.Options{Schema: f.schema, Partition: always})
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 10 {
				n, err := s.Forget(t.Context(), 1000)
				if err != nil {
					t.Error(err)
				}
				total.Add(int64(n))
			}
		}()
	}
	wg.Wait()
	waitFor(t, func() bool {
		n, err := f.Forget(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		return total.Add(int64(n)) >= keys
	})
	if n := total.Load(); n != keys {
		t.Errorf("%d records were forgotten, want %d", n, keys)
	}
	f.consistent(t)
}

// consistent checks that the list of partitions matches the tables.
func (f *fixture) consistent(t testing.TB) {
	t.Helper()
	if n := f.number(t, `SELECT count(*) FROM (SELECT format('once_record_%s', id) FROM `+f.schema+`.once_part) AS p (name)
		FULL JOIN (SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = '`+f.records()+`'::regclass) AS c (name)
		USING (name) WHERE p IS NULL OR c IS NULL`); n != 0 {
		t.Errorf("%d partitions are known to one side only", n)
	}
	if n := f.number(t, `SELECT count(*) FROM pg_tables WHERE schemaname = '`+f.schema+`' AND tablename LIKE 'once\_record\__%'`); n !=
		f.number(t, `SELECT count(*) FROM `+f.schema+`.once_part`) {
		t.Errorf("there are %d tables of partitions", n)
	}
	f.forgotten(t) // claims go on
}

// A long transaction delays Forget, and no other call.
func TestALongTransactionDelaysOnlyForget(t *testing.T) {
	f := newPartitioned(t, always)
	f.forgotten(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{newRequest()}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var slowest atomic.Int64
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-stop:
				return
			default:
			}
			start := time.Now()
			if rec, err := f.Claim(t.Context(), newRequest()); err != nil || rec.Attempt != 1 {
				t.Errorf("a claim beside it: %+v, %v", rec, err)
			}
			slowest.Store(max(slowest.Load(), int64(time.Since(start))))
		}
	}()
	var tries []time.Duration
	for range 5 {
		start := time.Now()
		if n := f.forget(t); n != 0 {
			t.Errorf("Forget: %d", n)
		}
		tries = append(tries, time.Since(start))
	}
	close(stop)
	wg.Wait()
	if slow := time.Duration(slowest.Load()); slow > 2*time.Second || tries[0] > 2*time.Second {
		t.Errorf("the slowest claim took %v, Forget %v", slow, tries)
	}
	if f.newest(t) != 1 {
		t.Errorf("the newest partition is %d", f.newest(t))
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.schema+`.once_part WHERE tried > 0`); n != 1 {
		t.Error("nobody is told to let claims rest from it")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { f.forget(t); return f.newest(t) > 1 })
}

// killer makes the server end a connection before or after it runs a certain
// statement.
type killer struct {
	admin *pgxpool.Pool
	at    string
	after bool
	hits  atomic.Int64
}

type killed struct{}

func (k *killer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(strings.ToUpper(data.SQL), k.at) || k.hits.Load() > 0 {
		return ctx
	}
	if !k.after {
		k.kill(conn)
	}
	return context.WithValue(ctx, killed{}, true)
}

func (k *killer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	if k.after && ctx.Value(killed{}) != nil && k.hits.Load() == 0 {
		k.kill(conn)
	}
}

func (k *killer) kill(conn *pgx.Conn) {
	k.hits.Add(1)
	_, _ = k.admin.Exec(context.Background(), `SELECT pg_terminate_backend($1, 5000)`, conn.PgConn().PID())
}

func TestForgetSurvivesALostConnection(t *testing.T) {
	for _, at := range []string{"CREATE TABLE", "CREATE UNIQUE", "LOCK TABLE", "ATTACH", "INSERT INTO %PART\"", "DROP TABLE", "DELETE FROM %PART\"", "PICKED", "COMMIT"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(at, after), func(t *testing.T) {
				f := newPartitioned(t, always)
				for range 16 {
					f.forgotten(t)
				}
				r := newRequest()
				rec, err := f.Claim(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				set := done(rec, "")
				set.Status = once.Parked
				if err := f.Settle(t.Context(), set); err != nil {
					t.Fatal(err)
				}
				k := &killer{admin: f.admin, at: strings.ReplaceAll(at, "%", strings.ToUpper(`"`+f.schema+`"."once_`)), after: after}
				s := pgstore.New(pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = k }), &pgstore.Options{Schema: f.schema, Partition: always})
				_, err = s.Forget(t.Context(), 100)
				if k.hits.Load() == 0 {
					t.Fatalf("nothing died, and Forget returned %v", err)
				}
				f.consistent(t)
				wantStatus(t, f, r.Key, once.Parked)
				if _, err := s.Forget(t.Context(), 100); err != nil { // with another connection
					t.Error(err)
				}
				waitFor(t, func() bool {
					if _, err := s.Forget(t.Context(), 100); err != nil {
						t.Fatal(err)
					}
					return f.number(t, `SELECT count(*) FROM `+f.records()+` WHERE key_until = 1 OR status = 4`) == 0
				})
				f.consistent(t)
				wantStatus(t, f, r.Key, once.Parked)
			})
		}
	}
}

func TestForgetNeedsTheOwner(t *testing.T) {
	f := newPartitioned(t, always)
	role := f.schema + "_dml"
	must(t, f.admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'x'`)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
		defer cancel()
		for _, sql := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
			if _, err := f.admin.Exec(ctx, sql); err != nil {
				t.Log(err)
			}
		}
	})
	must(t, f.admin, `GRANT USAGE ON SCHEMA `+f.schema+` TO `+role)
	must(t, f.admin, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+f.records()+`, `+f.schema+`.once_part, `+f.schema+`.once_schema, `+f.effects()+` TO `+role)
	s := pgstore.New(pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.User, cfg.ConnConfig.Password = role, "x" }),
		&pgstore.Options{Schema: f.schema, Partition: always})
	f.forget(t) // grants on the table are enough for partitions that are added later
	r := newRequest()
	if _, err := transact(t.Context(), s, r, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "row") }); err != nil {
		t.Error(err)
	}
	wantStatus(t, s, r.Key, once.Done)
	if err := s.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate where all is right: %v", err)
	}
	_, err := s.Forget(t.Context(), 10)
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "drops tables, which the role \""+role+"\" may not")
}

func TestLayoutsAreToldApart(t *testing.T) {
	f, whole := newPartitioned(t, always), newFixture(t)
	for name, s := range map[string]once.Store{
		"pgstore without Partition": pgstore.New(f.pool, &pgstore.Options{Schema: f.schema}),
		"sqlstore":                  withSQL(t, f),
		"pgstore with Partition":    pgstore.New(whole.pool, &pgstore.Options{Schema: whole.schema, Partition: time.Hour}),
	} {
		_, err := s.Claim(t.Context(), newRequest())
		wantError(t, err, once.ErrInvalid)
		wantError(t, s.(interface{ Migrate(context.Context) error }).Migrate(t.Context()), once.ErrInvalid)
		wantText(t, err, map[bool]string{true: "have partitions", false: "partitions"}[name == "sqlstore"])
	}
	_, err := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema}).Claim(t.Context(), newRequest())
	wantText(t, err, "has partitions")
	_, err = pgstore.New(whole.pool, &pgstore.Options{Schema: whole.schema, Partition: time.Hour}).Claim(t.Context(), newRequest())
	wantText(t, err, "has no partitions")
	_, err = pgstore.New(f.pool, &pgstore.Options{Schema: f.schema + "x", Partition: time.Hour}).Claim(t.Context(), newRequest())
	wantText(t, err, "missing: call Migrate")
	for _, o := range []*pgstore.Options{{Partition: -1}, {Partition: 1, PartitionWait: -1}, {Partition: 1, Isolation: pgx.Serializable}} {
		_, err := pgstore.New(f.pool, o).Claim(t.Context(), newRequest())
		wantError(t, err, once.ErrInvalid)
	}
}

// Schema prints what Migrate runs.
func TestSchemaOfPartitions(t *testing.T) {
	f := newPartitioned(t, time.Hour)
	printed := f.schema + "_printed"
	sql, err := pgstore.Schema(&pgstore.Options{Schema: printed, Partition: time.Hour}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = f.admin.Exec(context.Background(), `DROP SCHEMA `+printed+` CASCADE`) })
	if _, err := f.admin.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	s := pgstore.New(f.pool, &pgstore.Options{Schema: printed, Partition: time.Hour})
	if _, err := s.Claim(t.Context(), newRequest()); err != nil {
		t.Error(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}

// Two stores that name one schema in two ways use the same locks.
func TestPartitionsByTheSearchPath(t *testing.T) {
	f := newPartitioned(t, time.Hour)
	u, err := url.Parse(server(t))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", f.schema)
	u.RawQuery = q.Encode()
	other := pgstore.New(pool(t, u.String()), &pgstore.Options{Partition: time.Hour})
	r := newRequest()
	if _, err := transact(t.Context(), f.Store, r, func(pgx.Tx) error {
		rec, err := other.Claim(t.Context(), rival(r))
		if rec.Status != once.Running || rec.LeaseLeft != 0 {
			t.Errorf("got %+v", rec)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestPartitionsNeedReadCommitted(t *testing.T) {
	f := newPartitioned(t, always)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		s := pgstore.New(pool(t, server(t), isolation(level)), &pgstore.Options{Schema: f.schema, Partition: always})
		r := newRequest()
		_, err := s.Claim(t.Context(), r)
		wantError(t, err, once.ErrInvalid)
		wantText(t, err, string(level))
		r.Attempt = 1
		_, err = s.Claim(t.Context(), r)
		wantError(t, err, once.ErrInvalid)
		r.Attempt = 0
		for _, early := range []bool{false, true} {
			expected := done(once.Record{}, "ok")
			r.Speculative, r.Expected = early, &expected
			_, err = transact(t.Context(), s, r, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "row") })
			wantError(t, err, once.ErrInvalid)
		}
		tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.ClaimTx(t.Context(), tx, []once.ClaimRequest{newRequest()})
		wantError(t, err, once.ErrInvalid)
		if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
			t.Errorf("the transaction is no longer usable: %v", err)
		}
		_ = tx.Rollback(t.Context())
		if _, err := transact(t.Context(), pgstore.New(pool(t, server(t), isolation(level)),
			&pgstore.Options{Schema: f.schema, Partition: always, Isolation: pgx.ReadCommitted}), newRequest(), func(pgx.Tx) error { return nil }); err != nil {
			t.Errorf("with the right level in the options: %v", err)
		}
	}
	if n := f.count(t, "row"); n != 0 || f.number(t, `SELECT count(*) FROM `+f.records()) != 2 {
		t.Errorf("%d effects in a level that is refused", n)
	}
}

// If a partition has more parked records than a call may move, several calls
// move them.
func TestParkedRecordsLeaveAPartitionInSlices(t *testing.T) {
	f := newPartitioned(t, always)
	for range 3 {
		f.forgotten(t)
	}
	const parked = 6
	for range parked {
		rec, err := f.Claim(t.Context(), newRequest())
		if err != nil {
			t.Fatal(err)
		}
		set := done(rec, "")
		set.Status, set.Outcome = once.Parked, once.Outcome{}
		if err := f.Settle(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if _, err := f.Forget(t.Context(), parked-1); err != nil {
			t.Fatal(err)
		}
		must(t, f.admin, `UPDATE `+f.schema+`.once_part SET due = 0`)
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.records()); n != parked {
		t.Errorf("after 20 calls of Forget %d records are left, want %d", n, parked)
	}
}

// dropper drops a partition, as another process may, when a statement is about to
// be sent.
type dropper struct {
	f       *fixture
	t       testing.TB
	before  string // a part of the statement
	dropped atomic.Bool
}

func (d *dropper) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, d.before) && strings.Contains(data.SQL, "once_record_1") && !d.dropped.Swap(true) {
		must(d.t, d.f.admin, `DROP TABLE `+d.f.schema+`.once_record_1`)
		must(d.t, d.f.admin, `DELETE FROM `+d.f.schema+`.once_part WHERE id = 1`)
	}
	return ctx
}

func (*dropper) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A Forget whose partition another process drops meanwhile goes on, whichever
// statement is the first that misses it.
func TestForgetBesideADroppedPartition(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		kept   int // records that Forget finds there
	}{
		"counts": {"count(*) FILTER", 0}, "moves": {"FOR UPDATE SKIP LOCKED", 1}, "puts off": {"SET due = greatest", 8},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPartitioned(t, always)
			for range 8 {
				f.forgotten(t)
			}
			for range c.kept {
				rec, err := f.Claim(t.Context(), newRequest())
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Settle(t.Context(), done(rec, "kept")); err != nil {
					t.Fatal(err)
				}
			}
			d := &dropper{f: f, t: t, before: c.before}
			s := pgstore.New(pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = d }),
				&pgstore.Options{Schema: f.schema, Partition: always})
			if _, err := s.Forget(t.Context(), 100); err != nil {
				t.Error(err)
			}
			if !d.dropped.Load() {
				t.Error("Forget has sent no such statement")
			}
			f.consistent(t)
		})
	}
}
