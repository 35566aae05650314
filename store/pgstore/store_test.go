package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestExecModes(t *testing.T) {
	direct := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, m := range direct {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			life(t, f, f.Store)
		})
	}
	pooled := []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, m := range pooled {
		t.Run("PgBouncer, "+m.String(), func(t *testing.T) {
			f := newFixture(t)
			through := pgstore.New(pool(t, bouncer(t), mode(m)), &pgstore.Options{Schema: f.schema})
			if err := through.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			life(t, f, through)
			storm(t, f, through, f.Store)
		})
	}
}

// life takes keys through every statement of a store, with every kind of value.
func life(t *testing.T, f *fixture, s *pgstore.Store) {
	t.Helper()
	ctx := t.Context()
	r := newRequest()
	r.Key.Scope, r.Key.ID = `o'k "\%_ é`, r.Key.ID+` '; --\`
	r.Fingerprint = []byte{0, 0xff, '\''}
	rec, err := s.Claim(ctx, r)
	if err != nil || rec.Status != once.Running || rec.Key != r.Key || rec.Owner != r.Owner || rec.Attempt != 1 ||
		string(rec.Fingerprint) != string(r.Fingerprint) || rec.LeaseLeft <= 0 || rec.LeaseLeft > r.Lease {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	if rec, err = s.Claim(ctx, r); err != nil || rec.Status != once.Running || rec.Owner != r.Owner || rec.Attempt != 1 {
		t.Errorf("Claim, repeated: %+v, %v", rec, err)
	}
	fence := once.Fence{Key: r.Key, Owner: r.Owner, Attempt: 1}
	if err := s.Extend(ctx, fence, time.Hour); err != nil {
		t.Errorf("Extend: %v", err)
	}
	if rec = get(t, s, r.Key); rec.LeaseLeft <= time.Minute {
		t.Errorf("Extend: %+v", rec)
	}
	fence.Attempt = 2
	wantError(t, s.Extend(ctx, fence, time.Hour), once.ErrLeaseLost)

	set := done(rec, "")
	set.Outcome.Body, set.Outcome.Rejected, set.Outcome.Omitted = []byte{0, 0xff, '\\', '\''}, true, true
	set.Reason = "a bad \xff and a \x00 byte"
	for range 2 {
		if err := s.Settle(ctx, set); err != nil {
			t.Fatalf("Settle: %v", err)
		}
	}
	rec = get(t, s, r.Key)
	if rec.Status != once.Done || string(rec.Outcome.Body) != "\x00\xff\\'" || !rec.Outcome.Rejected || !rec.Outcome.Omitted ||
		rec.Outcome.Sum != set.Outcome.Sum || rec.Outcome.ContentType != "text/plain" || rec.Reason != "a bad \uFFFD and a \uFFFD byte" ||
		string(rec.Fingerprint) != string(r.Fingerprint) {
		t.Errorf("Get: %+v", rec)
	}
	other := set
	other.Outcome.Body = []byte("other")
	wantError(t, s.Settle(ctx, other), once.ErrLeaseLost)

	r2, name := newRequest(), fmt.Sprintf("%x", random())
	if _, err := transact(ctx, s, r2, func(tx pgx.Tx) error { return f.write(ctx, tx, name) }); err != nil {
		t.Errorf("Transact: %v", err)
	}
	if n := f.count(t, name); n != 1 {
		t.Errorf("Transact: %d rows", n)
	}
	if rec, err := transact(ctx, s, rival(r2), nothing); err != nil || rec.Status != once.Done {
		t.Errorf("Transact, replayed: %+v, %v", rec, err)
	}
	if page, err := s.List(ctx, once.RecordQuery{Status: []once.Status{once.Done, once.Parked}, Operation: "test"}); err != nil || len(page.Records) != 2 {
		t.Errorf("List: %d records, %v", len(page.Records), err)
	}
	if page, err := s.List(ctx, once.RecordQuery{Limit: 1}); err != nil || len(page.Records) != 1 || page.Records[0].Outcome.Body != nil {
		t.Errorf("List: %+v, %v", page, err)
	}
	if n, err := s.Forget(ctx, 10); err != nil || n != 0 {
		t.Errorf("Forget: %d, %v", n, err)
	}
}

// Forget finds due records by the index, and skips those that another
// transaction is changing.
func TestForget(t *testing.T) {
	f := newFixture(t)
	var keys []once.Key
	for i := range 5 {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		set := done(rec, "ok")
		if set.KeepOutcome = 0; i%2 == 0 {
			set.KeepKey = 0
		}
		if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, r.Key)
	}
	lock, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(t.Context())
	if _, err := lock.Exec(t.Context(), `SELECT FROM `+f.records()+` WHERE key = $1 FOR UPDATE`, keys[0].String()); err != nil {
		t.Fatal(err)
	}
	forget := func(want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		if n, err := f.Forget(ctx, 3); err != nil || n != want {
			t.Errorf("Forget: %d, %v, want %d", n, err, want)
		}
	}
	forget(3)
	forget(1)
	forget(0)
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	forget(1)
	for i, k := range keys {
		want := once.Expired
		if i%2 == 0 {
			want = once.Absent
		}
		wantStatus(t, f, k, want)
	}
	var rows, bodies int
	if err := f.admin.QueryRow(t.Context(), `SELECT count(*), count(outcome) FROM `+f.records()).Scan(&rows, &bodies); err != nil || rows != 2 || bodies != 0 {
		t.Errorf("%d rows with %d outcomes are left, %v", rows, bodies, err)
	}
	_, err = f.Forget(t.Context(), 0)
	wantError(t, err, once.ErrInvalid)
}

func TestBadOptionsAreReportedByEveryMethod(t *testing.T) {
	p := pool(t, server(t))
	for name, c := range map[string]struct {
		store *pgstore.Store
		want  error
	}{
		"prefix":      {pgstore.New(p, &pgstore.Options{Prefix: `x"; DROP`}), once.ErrInvalid},
		"schema":      {pgstore.New(p, &pgstore.Options{Schema: "a.b"}), once.ErrInvalid},
		"no pool":     {pgstore.New(nil, nil), once.ErrInvalid},
		"no tables":   {pgstore.New(p, &pgstore.Options{Schema: schema(t, p)}), once.ErrInvalid},
		"closed pool": {closedStore(t), once.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx, r := c.store, t.Context(), newRequest()
			if s.Options() == nil {
				t.Error("no Options")
			}
			tx, err := p.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx)
			calls := map[string]func() error{
				"Claim":    func() error { _, err := s.Claim(ctx, r); return err },
				"Extend":   func() error { return s.Extend(ctx, r.Fence, time.Second) },
				"Settle":   func() error { return s.Settle(ctx, done(once.Record{Key: r.Key}, "")) },
				"Get":      func() error { _, err := s.Get(ctx, r.Key); return err },
				"Forget":   func() error { _, err := s.Forget(ctx, 1); return err },
				"List":     func() error { _, err := s.List(ctx, once.RecordQuery{}); return err },
				"Transact": func() error { _, err := transact(ctx, s, r, nothing); return err },

				"Outgoing":    func() error { _, err := s.Outgoing(ctx, store.OutgoingQuery{}); return err },
				"Sent":        func() error { _, err := s.Sent(ctx, random(), messages("a"), store.Delete); return err },
				"LeaseLanes":  func() error { _, err := s.LeaseLanes(ctx, random(), time.Second, []int{1}); return err },
				"OutboxDepth": func() error { _, err := s.OutboxDepth(ctx, 10); return err },
				"HearOutbox":  func() error { _, err := s.HearOutbox(ctx); return err },
				"AppearRelay": func() error { _, err := s.AppearRelay(ctx); return err },
			}
			if c.want == once.ErrInvalid {
				calls["PutTx"] = func() error { return s.PutTx(ctx, tx, messages("a")) }
				calls["ClaimTx"] = func() error { _, err := s.ClaimTx(ctx, tx, []once.ClaimRequest{r}); return err }
				calls["SettleTx"] = func() error { return s.SettleTx(ctx, tx, []once.Settlement{done(once.Record{Key: r.Key}, "")}) }
			}
			if name != "no tables" {
				calls["Migrate"] = func() error { return s.Migrate(ctx) }
			}
			for name, call := range calls {
				t.Run(name, func(t *testing.T) { wantError(t, call(), c.want) })
			}
		})
	}
}

// closedStore returns a store whose pool was closed after it was used.
func closedStore(t *testing.T) *pgstore.Store {
	f := newFixture(t)
	if _, err := f.Claim(t.Context(), newRequest()); err != nil {
		t.Fatal(err)
	}
	f.pool.Close()
	return f.Store
}

func TestSettlementsThatEndNothingAreInvalid(t *testing.T) {
	f := newFixture(t)
	for _, status := range []once.Status{once.Running, once.Expired, -1, 9} {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		set := done(rec, "")
		set.Status = status
		wantError(t, f.Settle(t.Context(), set), once.ErrInvalid)
		_, err = f.Transact(t.Context(), []once.ClaimRequest{newRequest()}, func(pgx.Tx, []once.Record) ([]once.Settlement, error) {
			return []once.Settlement{set}, nil
		})
		wantError(t, err, once.ErrInvalid)
		wantStatus(t, f, r.Key, once.Running)
	}
}

// Stores with two prefixes in one schema, or one prefix in two schemas, do not
// share keys, nor transactions in flight.
func TestPrefixesAndSchemas(t *testing.T) {
	p := pool(t, server(t))
	a, b := schema(t, p), schema(t, p)
	stores := []*pgstore.Store{pgstore.New(p, &pgstore.Options{Schema: a}), pgstore.New(p, &pgstore.Options{Schema: b}),
		pgstore.New(p, &pgstore.Options{Schema: a, Prefix: "Other_"})}
	for _, s := range stores {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := newRequest()
	work := nothing
	for _, s := range stores {
		inner := work
		work = func(pgx.Tx) error {
			rec, err := transact(t.Context(), s, r, inner)
			if rec.Owner != r.Owner || rec.Attempt != 1 {
				t.Errorf("got %+v, %v", rec, err)
			}
			return err
		}
	}
	if err := work(nil); err != nil {
		t.Error(err)
	}
	for _, s := range stores {
		wantStatus(t, s, r.Key, once.Done)
		if page, err := s.List(t.Context(), once.RecordQuery{}); err != nil || len(page.Records) != 1 {
			t.Errorf("%d records, %v", len(page.Records), err)
		}
	}
}

// Once the tables exist, a role that may only read and write rows is enough.
func TestRoleWithoutDDL(t *testing.T) {
	f := newFixture(t)
	role := "dml_" + strings.TrimPrefix(f.schema, "pgstore_")
	must(t, f.admin, `CREATE ROLE `+role+` LOGIN`)
	t.Cleanup(func() {
		if _, err := f.admin.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Log(err)
		}
	})
	must(t, f.admin, `GRANT USAGE ON SCHEMA `+f.schema+` TO `+role)
	must(t, f.admin, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA `+f.schema+` TO `+role)
	s := f.again(t, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `SET ROLE `+role)
			return err
		}
	})
	life(t, f, s)
	if err := s.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate with nothing to do: %v", err)
	}
}

func TestMigrateAtOnce(t *testing.T) {
	admin := pool(t, server(t))
	name := schema(t, admin)
	var wg sync.WaitGroup
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := pgstore.New(admin, &pgstore.Options{Schema: name}).Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
}

// Running what Schema prints has the same effect as Migrate, without tables and
// with those of an older version.
func TestSchemaByHand(t *testing.T) {
	admin := pool(t, server(t))
	for from := range 2 {
		o := &pgstore.Options{Schema: schema(t, admin), Prefix: "by_hand_"}
		s := pgstore.New(admin, o)
		text, err := pgstore.Schema(o, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := newRequest()
		if from == 1 {
			first, _, _ := strings.Cut(text, "-- version 2")
			must(t, admin, first+"COMMIT")
			_, err := s.Get(t.Context(), r.Key)
			wantError(t, err, once.ErrInvalid)
			wantText(t, err, "too old")
			must(t, admin, `INSERT INTO `+o.Schema+`.by_hand_record (key, scope, operation, id, status, attempt, owner, lease_until, created, updated)
				VALUES ($1, $2, $3, $4, 1, 3, $5, 9e15, 1, 1)`, r.Key.String(), r.Key.Scope, r.Key.Operation, r.Key.ID, r.Owner)
			if text, err = pgstore.Schema(o, 1); err != nil {
				t.Fatal(err)
			}
		}
		must(t, admin, text)
		if rec, err := s.Claim(t.Context(), r); err != nil || rec.Owner != r.Owner || rec.Attempt != int64(1+2*from) {
			t.Errorf("from version %d: %+v, %v", from, rec, err)
		}
		if err := s.Migrate(t.Context()); err != nil {
			t.Errorf("Migrate with nothing to do: %v", err)
		}
	}
	_, err := pgstore.Schema(&pgstore.Options{Schema: "a.b"}, 0)
	wantError(t, err, once.ErrInvalid)
}

func TestTablesFromTheFutureAreRefused(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `INSERT INTO `+f.schema+`.once_schema (version, compatible, name, applied) VALUES (90, 2, 'later', 1)`)
	if _, err := f.again(t).Claim(t.Context(), newRequest()); err != nil {
		t.Errorf("a later version that is compatible: %v", err)
	}
	must(t, f.admin, `INSERT INTO `+f.schema+`.once_schema (version, compatible, name, applied) VALUES (91, 91, 'later', 1)`)
	_, err := f.again(t).Claim(t.Context(), newRequest())
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "newer than this program")
	wantError(t, f.Migrate(t.Context()), once.ErrInvalid)
}

func TestNoTransaction(t *testing.T) {
	f := newFixture(t)
	_, err := f.ClaimTx(t.Context(), nil, []once.ClaimRequest{newRequest()})
	wantError(t, err, once.ErrInvalid)
	wantError(t, f.SettleTx(t.Context(), nil, nil), once.ErrInvalid)
}

// If two copies of a settlement wait for the row at the same time, the second
// sees what the first did.
func TestCopiesOfASettlementAtOnce(t *testing.T) {
	for _, status := range []once.Status{once.Done, once.Absent} {
		t.Run(status.String(), func(t *testing.T) {
			f := newFixture(t)
			rec, err := f.Claim(t.Context(), newRequest())
			if err != nil {
				t.Fatal(err)
			}
			lock, err := f.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Rollback(t.Context())
			if _, err := lock.Exec(t.Context(), `SELECT FROM `+f.records()+` WHERE key = $1 FOR UPDATE`, rec.Key.String()); err != nil {
				t.Fatal(err)
			}
			set := done(rec, "ok")
			set.Status = status
			settled := make(chan error, 2)
			for range 2 {
				go func() { settled <- f.Settle(t.Context(), set) }()
			}
			waitFor(t, func() bool {
				var n int
				err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
					AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()`, f.schema).Scan(&n)
				return err == nil && n == 2
			})
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(<-settled, <-settled); err != nil {
				t.Error(err)
			}
		})
	}
}

// Texts in another encoding would not be read as they were written.
func TestAnotherClientEncodingIsRefused(t *testing.T) {
	f := newFixture(t)
	p := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1" })
	s := pgstore.New(p, &pgstore.Options{Schema: f.schema})
	wantError(t, s.Migrate(t.Context()), once.ErrInvalid)
	_, err := s.Claim(t.Context(), newRequest())
	wantError(t, err, once.ErrInvalid)
	wantText(t, err, "client_encoding")
}
