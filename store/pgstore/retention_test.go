package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// layouts are fixtures with each kind of table.
var layouts = map[string]func(t testing.TB) *fixture{
	"one table":  func(t testing.TB) *fixture { return newFixture(t) },
	"partitions": func(t testing.TB) *fixture { return newPartitioned(t, always) },
}

// ways are the ways to run work in a transaction.
var ways = map[string]func(context.Context, *fixture, once.Work[string], func(context.Context, pgx.Tx) (string, error)) error{
	"claims first": func(ctx context.Context, f *fixture, w once.Work[string], run func(context.Context, pgx.Tx) (string, error)) error {
		_, err := once.DoTx(ctx, f.Store, w, run)
		return err
	},
	"looks first": func(ctx context.Context, f *fixture, w once.Work[string], run func(context.Context, pgx.Tx) (string, error)) error {
		_, err := once.DoTx(ctx, f.Store, w.Redelivered(), run)
		return err
	},
	"in the caller's": func(ctx context.Context, f *fixture, w once.Work[string], run func(context.Context, pgx.Tx) (string, error)) error {
		return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			_, err := once.InTx(ctx, f.Store, tx, w, func(ctx context.Context) (string, error) { return run(ctx, tx) })
			return err
		})
	},
}

// Work that is done, and reopened while duplicates arrive in all ways, runs
// exactly twice.
func TestReopenedWorkRunsOnceMore(t *testing.T) {
	for layout, fresh := range layouts {
		for way, call := range ways {
			t.Run(layout+"/"+way, func(t *testing.T) {
				f := fresh(t)
				work := &once.Operation[string]{Name: "charge", Policy: once.Policy{Wait: once.NoWait}}
				for round := range 5 {
					id := fmt.Sprint(round)
					run := func(ctx context.Context, tx pgx.Tx) (string, error) { return "ok", f.write(ctx, tx, id) }
					if err := call(t.Context(), f, work.For(id), run); err != nil {
						t.Fatal(err)
					}
					rec := get(t, f, work.For(id).Key())
					var wg sync.WaitGroup
					for i := range 10 {
						wg.Add(1)
						go func() {
							defer wg.Done()
							if i == 5 {
								if err := store.Reopen(t.Context(), f.Store, rec, "ana: the wrong card"); err != nil {
									t.Error("Reopen:", err)
								}
								return
							}
							if err := call(t.Context(), f, work.For(id), run); err != nil && !errors.Is(err, once.ErrInProgress) {
								t.Error(err)
							}
						}()
					}
					wg.Wait()
					if err := call(t.Context(), f, work.For(id), run); err != nil {
						t.Error(err)
					}
					if now := get(t, f, rec.Key); now.Status != once.Done || now.Attempt != 2 || f.count(t, id) != 2 {
						t.Errorf("round %s: attempt %d is %v, and the work has happened %d times", id, now.Attempt, now.Status, f.count(t, id))
					}
				}
			})
		}
	}
}

// reopening loses the reply to a commit, and reopens the key before the caller
// looks for the record.
type reopening struct {
	*pgstore.Store
	t    *testing.T
	lost bool
}

func (s *reopening) Transact(ctx context.Context, rs []once.ClaimRequest, body func(pgx.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	recs, err := s.Store.Transact(ctx, rs, body)
	if s.lost || err != nil {
		return recs, err
	}
	s.lost = true
	if err := store.Reopen(ctx, s.Store, get(s.t, s.Store, rs[0].Key), "too soon"); err != nil {
		s.t.Error(err)
	}
	return nil, once.ErrOutcomeUnknown
}

// A call whose commit succeeded, and whose key was reopened since, does not run
// its work again, and returns that another call may.
func TestReopenedBeforeALostCommitIsFoundOut(t *testing.T) {
	for layout, fresh := range layouts {
		t.Run(layout, func(t *testing.T) {
			f := fresh(t)
			s := &reopening{Store: f.Store, t: t}
			work := &once.Operation[string]{Name: "charge"}
			call := func() error {
				_, err := once.DoTx(t.Context(), s, work.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
					return "ok", f.write(ctx, tx, "1")
				})
				return err
			}
			err := call()
			wantError(t, err, once.ErrLeaseLost)
			if _, again := once.MayRetry(err); !again || f.count(t, "1") != 1 {
				t.Errorf("%v: the work happened %d times", err, f.count(t, "1"))
			}
			wantStatus(t, f, work.For("1").Key(), once.Absent)
			if err := call(); err != nil || f.count(t, "1") != 2 {
				t.Errorf("the next call returned %v, and the work has happened %d times", err, f.count(t, "1"))
			}
		})
	}
}

// A row that is reopened is moved out of its partition, which may be dropped at
// any time.
func TestReopenedRowGoesToTheNewestPartition(t *testing.T) {
	f := newPartitioned(t, always)
	r := newRequest()
	r.Fingerprint = []byte("print")
	rec, err := transact(t.Context(), f.Store, r, nothing)
	if err != nil {
		t.Fatal(err)
	}
	before := f.partOf(t, r.Key)
	if _, err := f.Forget(t.Context(), 1); err != nil { // which adds a partition
		t.Fatal(err)
	}
	if err := store.Reopen(t.Context(), f.Store, get(t, f, r.Key), "because"); err != nil {
		t.Fatal(err)
	}
	now := get(t, f, r.Key)
	if f.partOf(t, r.Key) <= before || now.Status != once.Absent || now.Reason != "because" || string(now.Fingerprint) != "print" ||
		now.Attempt != rec.Attempt {
		t.Errorf("in partition %d of %d: %+v", f.partOf(t, r.Key), before, now)
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.records()); n != 1 {
		t.Errorf("there are %d rows of one key", n)
	}
	next := newRequest()
	next.Key = r.Key
	if rec, err := f.Claim(t.Context(), next); err != nil || rec.Attempt != 2 || rec.Owner != next.Owner {
		t.Errorf("the next claim returned %+v, %v", rec, err)
	}
}

// A row that is due earlier than it expires, or that does not expire, does not
// hold up the others.
func TestForgettablePassesOverWhatIsNotDueYet(t *testing.T) {
	f := newFixture(t)
	var keys []once.Key
	for i := range 12 {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		set := done(rec, "ok")
		switch {
		case i%4 == 1:
			set.Status = once.Absent
		case i%4 == 2:
			set.Status = once.Parked
		case i == 11:
			set.KeepOutcome = 0
		}
		if i%4 != 3 || i == 11 {
			if err := f.Settle(t.Context(), set); err != nil {
				t.Fatal(err)
			}
		}
		keys = append(keys, r.Key)
	}
	must(t, f.admin, `UPDATE `+f.records()+` SET due = 1 WHERE key <> $1`, keys[11].String())
	looks := 0
	for more := true; more; looks++ {
		var due []once.Record
		var err error
		due, more, err = f.Forgettable(t.Context(), 2)
		if err != nil || looks > 20 {
			t.Fatalf("look %d: %v", looks, err)
		}
		for _, rec := range due {
			if rec.Key != keys[11] || rec.Status != once.Done || string(rec.Outcome.Body) != "ok" {
				t.Errorf("%+v is past its time", rec)
			}
		}
		if n, err := f.ForgetRecords(t.Context(), due); err != nil || n != len(due) {
			t.Errorf("forgot %d of %d: %v", n, len(due), err)
		}
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.records()+` WHERE due = 1`); n != 0 || looks < 6 {
		t.Errorf("%d rows are looked at again and again; %d looks", n, looks)
	}
	wantStatus(t, f, keys[11], once.Expired)
	for i, want := range []once.Status{once.Done, once.Absent, once.Parked, once.Running} {
		wantStatus(t, f, keys[i], want)
	}
}

// Forgettable and ForgetRecords wait for no other transaction, in each exec
// mode.
func TestForgetRecords(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			var first once.Key
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
				if i == 0 {
					first = r.Key
				}
			}
			due, more, err := f.Forgettable(t.Context(), 10)
			if err != nil || more || len(due) != 5 {
				t.Fatalf("%d records, more: %v, %v", len(due), more, err)
			}
			lock, err := f.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Rollback(t.Context())
			if _, err := lock.Exec(t.Context(), `SELECT FROM `+f.records()+` WHERE key = $1 FOR UPDATE`, first.String()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			if n, err := f.ForgetRecords(ctx, due); err != nil || n != 4 {
				t.Errorf("beside a lock %d were forgotten, %v", n, err)
			}
			if due, _, err := f.Forgettable(ctx, 10); err != nil || len(due) != 1 || due[0].Key != first {
				t.Errorf("beside a lock %+v is left, %v", due, err)
			}
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n, err := f.ForgetRecords(ctx, due); err != nil || n != 1 {
				t.Errorf("then %d were forgotten, %v", n, err)
			}
			if n := f.number(t, `SELECT count(*) FROM `+f.records()); n != 2 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}

// Forgettable returns an error for a row whose key is not that of its parts.
func TestADamagedRowStopsTheArchive(t *testing.T) {
	f := newFixture(t)
	rec, err := f.Claim(t.Context(), newRequest())
	set := done(rec, "ok")
	set.KeepOutcome, set.KeepKey = 0, 0
	if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `UPDATE `+f.records()+` SET scope = 'another'`)
	_, _, err = f.Forgettable(t.Context(), 10)
	wantError(t, err, once.ErrCorrupt)
	if n, err := f.Forget(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("Forget: %d, %v", n, err)
	}
	if due, more, err := f.Forgettable(t.Context(), 10); len(due) > 0 || more || err != nil {
		t.Errorf("then %+v, %v, %v", due, more, err)
	}
}

// A page of large outcomes ends early, so that it fits into memory.
func TestForgettableEndsEarly(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `INSERT INTO `+f.records()+` (key, scope, operation, id, status, attempt, owner, outcome, outcome_until, key_until, due, created, updated)
SELECT $1::uuid, '', 'large', '1', 4, 1, gen_random_uuid(), convert_to(repeat('x', `+fmt.Sprint(store.MaxForgettable)+`), 'UTF8'), 1, 9e15, 1, 1, 1`,
		once.Key{Operation: "large", ID: "1"}.String())
	r := newRequest()
	rec, err := f.Claim(t.Context(), r)
	set := done(rec, "ok")
	set.KeepOutcome = 0
	if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
		t.Fatal(err)
	}
	due, more, err := f.Forgettable(t.Context(), 10)
	if err != nil || len(due) != 1 || !more || len(due[0].Outcome.Body) != store.MaxForgettable {
		t.Fatalf("%d records, more: %v, %v", len(due), more, err)
	}
	if n, err := f.ForgetRecords(t.Context(), due); n != 1 || err != nil {
		t.Errorf("forgot %d, %v", n, err)
	}
	if due, more, err := f.Forgettable(t.Context(), 10); err != nil || len(due) != 1 || more || due[0].Key != r.Key {
		t.Errorf("then %d records, more: %v, %v", len(due), more, err)
	}
}

// counted is a connection that counts the bytes it receives.
type counted struct {
	net.Conn
	read *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// What follows the end of a page is not received: of large outcomes that would
// be a hundred times as much.
func TestForgettableReadsNoMoreThanItReturns(t *testing.T) {
	var read atomic.Int64
	f := newFixture(t, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return counted{conn, &read}, err
		}
	})
	const outcomes, size = 16, store.MaxForgettable / 2
	for i := range outcomes {
		must(t, f.admin, `INSERT INTO `+f.records()+` (key, scope, operation, id, status, attempt, owner, outcome, outcome_until, key_until, due, created, updated)
SELECT $1::uuid, '', 'large', $2, 4, 1, gen_random_uuid(), convert_to(repeat('x', `+fmt.Sprint(size)+`), 'UTF8'), 1, 9e15, 1, 1, 1`,
			once.Key{Operation: "large", ID: fmt.Sprint(i)}.String(), fmt.Sprint(i))
	}
	for left := outcomes; left > 0; left -= 2 {
		before := read.Load()
		due, more, err := f.Forgettable(t.Context(), 1000)
		if err != nil || len(due) != 2 || !more {
			t.Fatalf("%d of %d records, more: %v, %v", len(due), left, more, err)
		}
		if n := read.Load() - before; n > 6*size { // as text, each byte is two
			t.Errorf("%d MiB were read for a page of 16, with %d outcomes left", n>>20, left)
		}
		if n, err := f.ForgetRecords(t.Context(), due); n != 2 || err != nil {
			t.Fatalf("forgot %d, %v", n, err)
		}
	}
	if due, more, err := f.Forgettable(t.Context(), 1000); len(due) > 0 || more || err != nil {
		t.Errorf("then %d records, more: %v, %v", len(due), more, err)
	}
}
