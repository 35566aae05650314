package pgstore_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/store/pgstore"
)

// fillPart adds settled rows with random keys to the newest partition. Those
// from before 1970 are due.
func (f *fixture) fillPart(t testing.TB, rows int, until time.Time) {
	t.Helper()
	must(t, f.admin, `INSERT INTO `+f.records()+` (part, key, scope, operation, id, status, attempt, owner, outcome, content_type, sum, outcome_until, key_until, created, updated)
		SELECT (SELECT max(id) FROM `+f.schema+`.once_part), gen_random_uuid(), 'tenant', 'fill', n::text, 4, 1, gen_random_uuid(), 'answer', 'text/plain', 5, $2, $2, 1, 1
		FROM generate_series(1, $1::int) AS n`, rows, until.UnixMicro())
}

// rotate adds a partition.
func (f *fixture) rotate(t testing.TB) {
	t.Helper()
	before := f.newest(t)
	waitFor(t, func() bool { f.forget(t); return f.newest(t) > before })
}

// An entry of an index on a key of 16 bytes takes 28: a header of 8, and a
// pointer of 4 to it. A page with room for 8,152 bytes is filled to nine tenths
// when an index is built, so that it has 262 entries, or 31.3 bytes for each.
// Another column of 8 bytes makes that 40, another index adds 22 or more.
//
// Pages that random keys have filled are of no use here. They split at about the
// same time, so that an entry takes between 38 and 46 bytes, depending on how
// many there are.
func TestIndexesOfPartitionsAreSmall(t *testing.T) {
	f := newPartitioned(t, always)
	const rows, most = 50_000, 33
	f.fillPart(t, rows, time.Now().Add(time.Hour))
	must(t, f.admin, `REINDEX TABLE `+f.records())
	bytes := f.number(t, `SELECT sum(pg_indexes_size(relid))::bigint FROM pg_partition_tree('`+f.records()+`')`)
	t.Logf("%.1f bytes of index for each row", float64(bytes)/rows)
	if bytes > rows*most {
		t.Errorf("%d bytes of index for %d rows", bytes, rows)
	}
}

// BenchmarkClaimInPartitions claims new keys in tables with a number of
// partitions. 0 is a table without partitions.
func BenchmarkClaimInPartitions(b *testing.B) {
	for _, parts := range []int{0, 1, 4, 8, 16} {
		b.Run(fmt.Sprint(parts), func(b *testing.B) {
			var s *pgstore.Store
			if parts == 0 {
				s = newFixture(b).Store
			} else {
				f := newPartitioned(b, always)
				for range parts - 1 {
					f.fillPart(b, 20_000, time.Now().Add(time.Hour))
					f.rotate(b)
				}
				s = f.Store
			}
			var took []time.Duration
			for b.Loop() {
				took = append(took, claimed(b, s))
			}
			report(b, "", took)
		})
	}
}

func claimed(b *testing.B, s *pgstore.Store) time.Duration {
	start := time.Now()
	if rec, err := s.Claim(b.Context(), newRequest()); err != nil || rec.Attempt != 1 {
		b.Errorf("%+v, %v", rec, err)
	}
	return time.Since(start)
}

func report(b *testing.B, name string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*p/100].Microseconds()), fmt.Sprintf("%sp%d-µs", name, p))
	}
}

// BenchmarkClaimBesideDrop claims during two seconds in which a partition of
// 300,000 rows is dropped, and during two in which nothing happens.
func BenchmarkClaimBesideDrop(b *testing.B) {
	const workers, span = 8, 2 * time.Second
	var quiet, beside []time.Duration
	for b.Loop() {
		f := newPartitioned(b, always)
		f.fillPart(b, 300_000, time.Unix(1, 0))
		must(b, f.admin, `UPDATE `+f.schema+`.once_part SET due = $1`, time.Now().Add(time.Hour).UnixMicro())
		f.rotate(b)
		f.claimFor(b, workers, span/4)
		quiet = append(quiet, f.claimFor(b, workers, span)...)
		must(b, f.admin, `UPDATE `+f.schema+`.once_part SET due = 0`)
		dropped := make(chan int)
		go func() {
			n := 0
			for end := time.Now().Add(span); n == 0 && time.Now().Before(end); {
				got, err := f.Forget(b.Context(), 1_000_000)
				if err != nil {
					b.Error(err)
				}
				n += got
			}
			dropped <- n
		}()
		beside = append(beside, f.claimFor(b, workers, span)...)
		if n := <-dropped; n < 300_000 {
			b.Errorf("%d rows were dropped", n)
		}
	}
	report(b, "quiet-", quiet)
	report(b, "beside-", beside)
}

func (f *fixture) claimFor(b *testing.B, workers int, span time.Duration) (took []time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for end := time.Now().Add(span); time.Now().Before(end); {
				d := claimed(b, f.Store)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	return took
}
