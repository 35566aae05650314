package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	_ "github.com/lib/pq"
)

// Claims of new, released and lost keys, by stores with any rate of losses, at
// every isolation level: each key has one effect.
func TestRivalsMakeOneEffectForEachKey(t *testing.T) {
	e := engine{"postgres", sqlstore.PostgreSQL, freshPostgres}
	for _, level := range []string{"read committed", "repeatable read", "serializable", "read committed, lib/pq"} {
		t.Run(level, func(t *testing.T) {
			fresh := e.fresh(t)
			setting := "default_transaction_isolation=" + url.QueryEscape(strings.TrimSuffix(level, ", lib/pq"))
			db := fresh(t, setting)
			if strings.HasSuffix(level, "pq") {
				dsn, _ := dsns.Load(db)
				db = open(t, "postgres", dsn.(string))
			}
			must(t, sqlstore.New(db, e.dialect, nil).Migrate(t.Context()))
			mustExec(t, db, effectTable)
			const keys, rivals = 40, 5
			late := time.Now().Add(testenv.Patience) // a rival that the system does not run holds up the others
			var wg sync.WaitGroup
			for w := range rivals {
				s := sqlstore.New(db, e.dialect, nil)
				wg.Add(1)
				go func() {
					defer wg.Done()
					r := rand.New(rand.NewPCG(uint64(w), 7))
					for k := range keys {
						id := fmt.Sprint("key", k)
						req := request(id, fmt.Sprintf("%d-%d", w, k))
						var lastRecs []once.Record
						var lastErr error
						for try := 0; ; try++ {
							if time.Now().After(late) {
								is, err := s.Get(t.Context(), req.Key)
								t.Errorf("%s never ended: %+v, %v; last %+v, %v", id, is, err, lastRecs, lastErr)
								return
							}
							fail := r.IntN(3)
							req.Owner = token(fmt.Sprintf("%d-%d-%d", w, k, try))
							recs, err := s.Transact(t.Context(), []once.ClaimRequest{req}, func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
								again, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{req}) // the same token twice
								if err != nil {
									return nil, err
								}
								if !again[0].HeldBy(req.Owner) {
									t.Errorf("the second claim lost against the first: %+v", again[0])
								}
								switch fail {
								case 0:
									return nil, errRolledBack
								case 1: // released
									set := settlement(recs[0], once.Absent)
									set.Outcome, set.KeepOutcome = once.Outcome{}, 0
									set.KeepKey = time.Duration(r.IntN(2)) * time.Millisecond
									set.KeepKey += time.Microsecond
									return []once.Settlement{set}, nil
								}
								return []once.Settlement{settlement(recs[0], once.Done)}, effect(t.Context(), tx, id)
							})
							lastRecs, lastErr = recs, err
							if err == nil && recs[0].Status == once.Done {
								break
							}
							if err == nil && recs[0].HeldBy(req.Owner) && fail == 2 {
								break
							}
							if err != nil && !errors.Is(err, errRolledBack) && !errors.Is(err, once.ErrConflict) {
								t.Errorf("%s: %v", id, err)
								return
							}
							if r.IntN(4) == 0 {
								_, _ = s.Forget(t.Context(), 10)
							}
						}
					}
				}()
			}
			wg.Wait()
			for k := range keys {
				if n := count(t, db, fmt.Sprint("key", k)); n != 1 && !t.Failed() {
					t.Errorf("key%d has %d effects", k, n)
				}
			}
		})
	}
}

var errRolledBack = errors.New("rolled back by the test")

// The lease of a claim whose statement had to wait for the table begins after
// the wait.
func TestALeaseBeginsAfterAWait(t *testing.T) {
	const lease = 50 * time.Millisecond
	for _, mode := range []string{"cache_statement", "simple_protocol", "exec"} {
		t.Run(mode, func(t *testing.T) {
			e := engine{"postgres", sqlstore.PostgreSQL, freshPostgres}
			open := e.fresh(t)
			admin := open(t)
			s := sqlstore.New(open(t, "default_query_exec_mode="+mode), e.dialect, nil)
			must(t, s.Migrate(t.Context()))
			if _, err := s.Claim(t.Context(), request("warm", "a")); err != nil {
				t.Fatal(err)
			}
			tx, err := open(t).BeginTx(t.Context(), nil)
			must(t, err)
			defer tx.Rollback()
			_, err = tx.ExecContext(t.Context(), "LOCK TABLE once_record IN ACCESS EXCLUSIVE MODE")
			must(t, err)
			ended := make(chan once.Record, 1)
			r := request("key", "a")
			r.Lease = lease
			go func() {
				rec, err := s.Claim(t.Context(), r)
				if err != nil {
					t.Error(err)
				}
				ended <- rec
			}()
			proof.Await(t, "the claim has waited longer than its lease", func() bool {
				var waits bool
				err := admin.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'relation'
AND query LIKE '%once_record%' AND clock_timestamp() - query_start > '100 ms')`).Scan(&waits)
				return err == nil && waits
			})
			var waited, left int64
			must(t, admin.QueryRowContext(t.Context(), `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&waited))
			must(t, tx.Rollback())
			<-ended
			must(t, admin.QueryRowContext(t.Context(), `SELECT lease_until - $1 FROM once_record WHERE id = 'key'`, waited).Scan(&left))
			if left < lease.Microseconds() {
				t.Errorf("the lease of %v ends %d µs after the wait", lease, left)
			}
		})
	}
}

// Work that fails leaves its key free, although Forget has deleted the old row
// of the key meanwhile.
func TestForgetBetweenTheStatementsOfAClaim(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			e := engine{"postgres", sqlstore.PostgreSQL, freshPostgres}
			open := e.fresh(t)
			admin := open(t)
			must(t, sqlstore.New(admin, e.dialect, nil).Migrate(t.Context()))
			mustExec(t, admin, effectTable)
			plain := sqlstore.New(admin, e.dialect, nil)
			rec, err := plain.Claim(t.Context(), request("key", "before"))
			must(t, err)
			set := settlement(rec, once.Done)
			set.KeepOutcome, set.KeepKey = time.Microsecond, time.Microsecond
			must(t, plain.Settle(t.Context(), set))
			var forgot sync.Once
			db := hooked(t, open(t, "default_transaction_isolation="+url.QueryEscape(level)), func(ctx context.Context, query string) func() {
				if strings.Contains(query, "gate AS") {
					forgot.Do(func() {
						proof.Await(t, "the old row is gone", func() bool {
							n, err := plain.Forget(context.Background(), 10)
							return err == nil && n > 0
						})
					})
				}
				return func() {}
			})
			s := sqlstore.New(db, e.dialect, nil)
			_, err = s.Transact(t.Context(), []once.ClaimRequest{request("key", "new")}, func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
				return nil, errRolledBack
			})
			if is, err := plain.Get(t.Context(), key("key")); err != nil || is.Status != once.Absent {
				t.Errorf("after work that failed and wrote nothing, the key is %v: %s", is.Status, is.Reason)
			}
			if errors.Is(err, once.ErrParked) {
				t.Error("the work may not be tried again")
			}
		})
	}
}

// Without WAL, a commit in SQLite waits for readers after the lease has begun.
// Its holder must not count on more.
func TestAClaimThatWaitedForReadersHasLessOfItsLeaseLeft(t *testing.T) {
	const wait, read = time.Second, 100 * time.Millisecond // at least; at most
	for _, lease := range []time.Duration{wait / 2, time.Minute} {
		t.Run(lease.String(), func(t *testing.T) {
			open := engines[0].fresh(t)
			s := sqlstore.New(open(t, "_pragma=busy_timeout(5000)", "_pragma=journal_mode(DELETE)"), sqlstore.SQLite, nil)
			must(t, s.Migrate(t.Context()))
			reader, err := open(t, "_pragma=busy_timeout(5000)").BeginTx(t.Context(), nil)
			must(t, err)
			defer reader.Rollback()
			var n int
			must(t, reader.QueryRowContext(t.Context(), "SELECT count(*) FROM once_record").Scan(&n))
			time.AfterFunc(wait, func() { reader.Rollback() })
			r := request("key", "a")
			r.Lease = lease
			rec, err := s.Claim(t.Context(), r)
			returned := time.Now()
			must(t, err)
			is, err := s.Get(t.Context(), r.Key)
			must(t, err)
			if left := is.LeaseLeft + time.Since(returned); rec.LeaseLeft > left+read || rec.Status != is.Status {
				t.Errorf("the claim returned %+v, which is %v with %v left", rec, is.Status, left)
			}
		})
	}
}
