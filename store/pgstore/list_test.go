package pgstore_test

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5/pgxpool"
)

// keySQL is the key of the record of the operation $2 without a scope, with the
// ID i.
const keySQL = `encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid`

// fillKeys adds records with their true keys. They are done, or not settled if
// status is not 4.
func (f *fixture) fillKeys(t testing.TB, operation string, status, from, to int) {
	t.Helper()
	part, newest := "", ""
	if f.number(t, `SELECT count(to_regclass('`+f.schema+`.once_part'))`) == 1 {
		part, newest = "part, ", "(SELECT max(id) FROM "+f.schema+".once_part), "
	}
	far := time.Now().Add(1000 * time.Hour).UnixMicro()
	must(t, f.admin, `INSERT INTO `+f.records()+` (`+part+`key, scope, operation, id, status, attempt, owner, lease_until, outcome, sum,
			outcome_until, key_until, due, created, updated)
		SELECT `+newest+keySQL+`, '', $2::text, i::text, $1::smallint, 1, gen_random_uuid(), CASE WHEN $1 = 1 THEN 1 END, '{"paid":true}', 5,
			CASE WHEN $1 = 4 THEN $3::bigint END, CASE WHEN $1 = 4 THEN $3::bigint END, CASE WHEN $1 = 4 THEN $3::bigint END, 1, 1
		FROM generate_series($4::int, $5::int) AS i, LATERAL (SELECT substring(sha256('once.key.1'::bytea || int8send(0) ||
			int8send(length($2::text)) || convert_to($2::text, 'UTF8') || int8send(length(i::text)) || convert_to(i::text, 'UTF8')), 1, 16) AS h) AS digest`,
		status, operation, far, from, to)
}

// reads returns how many rows were read so far.
func (f *fixture) reads(t testing.TB) int {
	t.Helper()
	must(t, f.pool, `SELECT pg_stat_force_next_flush()`)
	must(t, f.pool, `SELECT 1`)
	return f.number(t, `SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint FROM pg_stat_user_tables
		WHERE schemaname = '`+f.schema+`' AND relname LIKE 'once_record%'`)
}

// kindsOfPages are queries that read the table in different ways, and the
// records that they select: 5 running ones whose lease has ended, 3 parked
// ones, and the done ones of two operations.
var kindsOfPages = map[string]struct {
	query once.RecordQuery
	found int // on all pages; negative: too many to read all
	most  int // rows that a page reads
}{
	"all":                  {once.RecordQuery{}, -1, 2100},
	"unknown":              {once.RecordQuery{Status: []once.Status{once.Unknown}}, 5, 20},
	"parked, of one":       {once.RecordQuery{Status: []once.Status{once.Parked}, Operation: "rare"}, 0, 20},
	"running":              {once.RecordQuery{Status: []once.Status{once.Running, once.Parked}, Unchanged: time.Hour}, 3, 20},
	"a rare operation":     {once.RecordQuery{Operation: "rare", Limit: 1000}, 7, 2100},
	"a scope without keys": {once.RecordQuery{Scopes: []string{"nobody"}}, 0, 2100},
	"expired":              {once.RecordQuery{Status: []once.Status{once.Expired}}, 0, 2100},
	"done":                 {once.RecordQuery{Status: []once.Status{once.Done}, Limit: 10}, -1, 2100},
	"of a cause":           {once.RecordQuery{Cause: causeOf("few")}, 10, 40},
	"running, of a cause":  {once.RecordQuery{Cause: causeOf("few"), Status: []once.Status{once.Parked}}, 3, 40},
	"of a large cause":     {once.RecordQuery{Cause: causeOf("many"), Limit: 1000}, 2500, 2100},
	"of no known cause":    {once.RecordQuery{Cause: causeOf("none")}, 0, 10},
	"by its UUID":          {once.RecordQuery{UUID: once.Key{Operation: "rare", ID: "7"}.UUID()}, 1, 10},
}

func (f *fixture) fillForPages(t testing.TB, rows int) {
	t.Helper()
	const step = 500_000
	for from := 1; from <= rows; from += step {
		f.fillKeys(t, "usual", 4, from, min(from+step-1, rows))
	}
	f.fillKeys(t, "rare", 4, 1, 7)
	f.fillKeys(t, "crashed", 1, 1, 5)
	f.fillKeys(t, "stuck", 3, 1, 3)
	// Through the pool, so that these reads are counted before the measurement.
	caused := `UPDATE ` + f.records() + ` SET cause = $1 WHERE operation = ANY ($2::text[]) AND id::int <= 2500`
	must(t, f.pool, caused, causeOf("few"), []string{"rare", "stuck"})
	must(t, f.pool, caused, causeOf("many"), []string{"usual"})
}

func causeOf(id string) [16]byte { return once.Key{Operation: "cause", ID: id}.UUID() }

// Pages read few rows although the table was not analyzed since it was empty.
// With the default costs of random reads, PostgreSQL would rather read all of a
// table as small as this.
func TestPagesAreBoundedWork(t *testing.T) {
	one := func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["random_page_cost"] = "1.1"
	}
	for name, open := range map[string]func(*testing.T) *fixture{
		"one table":  func(t *testing.T) *fixture { return newFixture(t, one) },
		"partitions": func(t *testing.T) *fixture { return newPartitioned(t, always, one) },
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			for range 10 {
				for _, kind := range kindsOfPages {
					if _, err := f.List(t.Context(), kind.query); err != nil {
						t.Fatal(err)
					}
				}
			}
			f.fillForPages(t, 30_000)
			for kind, want := range kindsOfPages {
				found, pages := 0, 0
				for q := want.query; pages < 100; pages++ {
					before := f.reads(t)
					page, err := f.List(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					if read := f.reads(t) - before; read > want.most {
						t.Errorf("%s: page %d has read %d rows, the limit is %d", kind, pages, read, want.most)
					}
					found += len(page.Records)
					if q.After = page.Next; q.After == (once.Key{}) {
						break
					}
				}
				if want.found >= 0 && found != want.found || pages == 100 && want.found >= 0 {
					t.Errorf("%s: %d records on %d pages, want %d", kind, found, pages+1, want.found)
				}
			}
		})
	}
}

// TestPagesOfMany measures pages and keys of a large table, with ONCE_SOAK_ROWS
// rows, by default 10 million.
func TestPagesOfMany(t *testing.T) {
	if os.Getenv("ONCE_SOAK") == "" {
		t.Skip("takes long: set ONCE_SOAK")
	}
	rows := 10_000_000
	if text := os.Getenv("ONCE_SOAK_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFixture(t)
	f.fillForPages(t, rows)
	took := func(name string, call func(i int) error) {
		t.Helper()
		var all []time.Duration
		for i := range 300 {
			begun := time.Now()
			if err := call(i); err != nil {
				t.Fatal(name, err)
			}
			all = append(all, time.Since(begun))
		}
		slices.Sort(all)
		p95 := all[len(all)*95/100]
		t.Logf("%s: median %v, p95 %v, at most %v", name, all[len(all)/2], p95, all[len(all)-1])
		if p95 > 200*time.Millisecond {
			t.Errorf("%s: p95 is %v", name, p95)
		}
	}
	took("get", func(i int) error {
		rec, err := f.Get(t.Context(), once.Key{Operation: "usual", ID: strconv.Itoa(1 + i*(rows/300))})
		if err == nil && rec.Status != once.Done {
			t.Errorf("%+v", rec)
		}
		return err
	})
	for kind, want := range kindsOfPages {
		q := want.query
		took(kind, func(i int) error {
			q.After = once.Key{ID: strconv.Itoa(i)} // somewhere
			_, err := f.List(t.Context(), q)
			return err
		})
	}
}
