package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errBack = errors.New("rolled back by the test")

// met returns the records that the claims of a transaction return, and rolls it
// back.
func met(t *testing.T, f *fixture, rs ...once.ClaimRequest) (met []once.Record) {
	t.Helper()
	_, err := f.Transact(t.Context(), rs, func(_ pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		met = recs
		return nil, errBack
	})
	wantError(t, err, errBack)
	return met
}

// Several claims in a transaction return the same records as single claims,
// which use other statements.
func TestSeveralMeetWhatOneMeets(t *testing.T) {
	for name, change := range map[string]string{
		"done":             `outcome_until = {now} + 3600000000, key_until = {now} + 7200000000`,
		"expired":          `outcome_until = {now} - 1, key_until = {now} + 3600000000`,
		"forgotten":        `outcome_until = {now} - 2, key_until = {now} - 1`,
		"running":          `status = 1, lease_until = {now} + 3600000000`,
		"running, lapsed":  `status = 1, lease_until = {now} - 1`,
		"unknown":          `status = 2, lease_until = {now} - 1`,
		"parked":           `status = 3, reason = 'because'`,
		"freed":            `status = 0, key_until = {now} + 3600000000`,
		"freed, forgotten": `status = 0, key_until = {now} - 1`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			fresh, theirs := newRequest(), newRequest()
			if _, err := transact(t.Context(), f.Store, theirs, nothing); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(name, "expired") && name != "done" && name != "forgotten" {
				must(t, f.admin, `UPDATE `+f.records()+` SET outcome = NULL, content_type = '', outcome_until = NULL,
					key_until = NULL`)
			}
			must(t, f.admin, `UPDATE `+f.records()+` SET attempt = 3, `+
				strings.ReplaceAll(change, "{now}", "(extract(epoch FROM now()) * 1000000)::bigint"))
			mine, takeover := theirs, theirs
			mine.Owner, takeover.Owner, takeover.Attempt = random(), random(), 3
			for who, r := range map[string]once.ClaimRequest{"another": mine, "a takeover": takeover, "its owner": theirs} {
				want, got := singly(t, f, r), met(t, f, r, fresh)[0]
				if timeless(got) != timeless(want) {
					t.Errorf("%s meets\n%+v among several, and alone\n%+v", who, got, want)
				}
			}
		})
	}
}

// singly returns the record of a claim in a transaction of its own, which is
// rolled back.
func singly(t *testing.T, f *fixture, r once.ClaimRequest) once.Record {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
	if err != nil {
		t.Fatal(err)
	}
	return recs[0]
}

// timeless returns a record without what depends on the time of its claim.
func timeless(rec once.Record) string {
	return fmt.Sprint(rec.Key, rec.Status, rec.Attempt, rec.Owner, rec.LeaseLeft > 0, rec.LeaseLeft < 0, rec.Outcome,
		rec.Reason, rec.Age > time.Minute)
}

// sent counts the statements that a pool sends.
type sent struct{ atomic.Int64 }

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.Add(1)
	return ctx
}
func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (s *sent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.Add(1) }
func (s *sent) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// A repeated batch takes as many statements as a single message: BEGIN, two
// queries and ROLLBACK.
func TestSeveralThatAreKnownTakeFewStatements(t *testing.T) {
	var counted sent
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &counted })
	rs := make([]once.ClaimRequest, 64)
	for i := range rs {
		rs[i] = newRequest()
	}
	for n, want := range []once.Status{once.Running, once.Done} {
		before := counted.Load()
		recs, err := f.Transact(t.Context(), rs, func(_ pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
			for _, rec := range recs {
				sets = append(sets, done(rec, "ok"))
			}
			return sets, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, rec := range recs {
			if rec.Key != rs[i].Key || rec.Status != want {
				t.Errorf("claim %d: %+v", i, rec)
			}
		}
		if took := counted.Load() - before; n > 0 && took != 5 {
			t.Errorf("a repeated batch takes %d statements, want 5", took)
		}
	}
}

// Records that share most values are each written with their own. Each differs
// from its neighbours in one value.
func TestSeveralWithEndingsOfTheirOwn(t *testing.T) {
	f := newFixture(t)
	rs, sets, want := make([]once.ClaimRequest, 400), make([]once.Settlement, 400), make([]string, 400)
	for i := range rs {
		rs[i] = newRequest()
		rs[i].Key.Scope, rs[i].Key.Operation = pick(i, 0, "", "a"), pick(i, 1, "test", "other")
		rs[i].Lease = pick(i, 2, time.Minute, time.Hour)
		set := done(once.Record{Key: rs[i].Key, Owner: rs[i].Owner, Attempt: 1}, pick(i, 3, "yes", "no"))
		set.Outcome.Rejected, set.Outcome.ContentType = pick(i, 4, false, true), pick(i, 5, "text/plain", "text/html")
		set.KeepOutcome, set.KeepKey = pick(i, 6, time.Hour, 24*time.Hour), pick(i, 7, 48*time.Hour, 72*time.Hour)
		set.Reason, set.Outcome.Sum = pick(i, 8, "", "because"), uint32(i)
		want[i] = fmt.Sprintln(rs[i].Key, set.Owner, 4, set.Outcome, set.Reason, set.KeepOutcome, set.KeepKey)
		switch ending := pick(i, 9, 0, 1) * (1 + pick(i, 10, 0, 1) + 2*pick(i, 11, 0, 1)); ending {
		case 1:
			set = once.Settlement{Fence: set.Fence, Status: once.Parked}
			want[i] = fmt.Sprintln(rs[i].Key, set.Owner, 3, once.Outcome{}, "")
		case 2:
			set = once.Settlement{Fence: set.Fence, Status: once.Unknown}
			want[i] = fmt.Sprintln(rs[i].Key, set.Owner, 2, once.Outcome{}, "", time.Duration(0))
		case 3, 4: // it stays running
			want[i] = fmt.Sprintln(rs[i].Key, set.Owner, 1, once.Outcome{}, "", rs[i].Lease)
			set = once.Settlement{}
		}
		sets[len(sets)-1-i] = set
	}
	sets = slices.DeleteFunc(sets, func(set once.Settlement) bool { return set.Status == once.Absent })
	_, err := f.Transact(t.Context(), rs, func(pgx.Tx, []once.Record) ([]once.Settlement, error) { return sets, nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if got := f.written(t, r.Key); got != want[i] {
			t.Errorf("record %d:\n%swant\n%s", i, got, want[i])
		}
	}
}

// pick returns one of two values for the n-th property of the i-th record. Of
// four records, two are like those before.
func pick[T any](i, n int, a, b T) T {
	const properties = 12
	if i = i/4 + i%2; (i+properties-n)/properties%2 > 0 {
		return b
	}
	return a
}

// written is a record as its row has it, with how long it is kept or leased.
func (f *fixture) written(t *testing.T, key once.Key) string {
	t.Helper()
	rec := get(t, f, key)
	var keepOutcome, keepKey, lease *int64
	foreseen := false
	if err := f.admin.QueryRow(t.Context(), `SELECT outcome_until - updated, key_until - updated, lease_until - updated,
			coalesce(due BETWEEN outcome_until AND outcome_until + (outcome_until - updated) / 10,
				due IS NULL AND outcome_until IS NULL)
			FROM `+f.records()+` WHERE key = $1::text::uuid`,
		key.String()).Scan(&keepOutcome, &keepKey, &lease, &foreseen); err != nil {
		t.Fatal(err)
	}
	if !foreseen {
		t.Errorf("%v is due at another time than that of its outcome", key)
	}
	all := []any{rec.Key, rec.Owner, int(rec.Status), rec.Outcome, rec.Reason}
	for _, length := range []*int64{keepOutcome, keepKey, lease} {
		if length != nil {
			all = append(all, time.Duration(*length)*time.Microsecond)
		}
	}
	return fmt.Sprintln(all...)
}

// No plan of the statements for several claims reads the whole table once it
// has a few pages.
func TestSeveralReadByTheIndex(t *testing.T) {
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	must(t, f.admin, fmt.Sprintf(`INSERT INTO %s (key, scope, operation, id, status, attempt, created, updated)
		SELECT gen_random_uuid(), '', 'x', 'x', 3, 1, 0, 0 FROM generate_series(1, 2000)`, f.records()))
	must(t, f.admin, `ANALYZE `+f.records())
	known, fresh := newRequest(), newRequest()
	if _, err := transact(t.Context(), f.Store, known, nothing); err != nil {
		t.Fatal(err)
	}
	met(t, f, known, fresh)
	looked := 0
	for name, args := range f.prepared(t) {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			must(t, f.pool, `SET plan_cache_mode = `+mode)
			rows, _ := f.pool.Query(t.Context(), `EXPLAIN EXECUTE `+name+args, pgx.QueryExecModeSimpleProtocol)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plan := strings.Join(lines, "\n")
			if err != nil || strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "Index") {
				t.Errorf("%s: %v\n%s", mode, err, plan)
			}
			looked++
		}
	}
	if looked != 4 {
		t.Errorf("looked at %d plans, want 4: the statements are not found", looked)
	}
}

// prepared returns the names of statements that look for the rows of many keys,
// with 256 arguments each.
func (f *fixture) prepared(t *testing.T) map[string]string {
	t.Helper()
	keys, locks := make([]string, 256), make([]string, 256)
	for i := range keys {
		keys[i], locks[i] = newRequest().Key.String(), fmt.Sprint(i)
	}
	all := make(map[string]string)
	rows, _ := f.pool.Query(t.Context(), `SELECT name, cardinality(parameter_types) FROM pg_prepared_statements
		WHERE cardinality(parameter_types) > 0 AND statement LIKE '%unnest($1::uuid[]%' AND statement LIKE '%r.key = u.key%'`)
	var name string
	var parameters int
	_, err := pgx.ForEachRow(rows, []any{&name, &parameters}, func() error {
		if all[name] = `('{` + strings.Join(keys, ",") + `}'`; parameters > 1 {
			all[name] += `, '{` + strings.Join(locks, ",") + `}'`
		}
		all[name] += `)`
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
