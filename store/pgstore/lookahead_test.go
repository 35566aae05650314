package pgstore_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func aside(id, orderingKey string) store.Shelved {
	return store.Shelved{Consumer: "bills", Key: id, State: store.Waiting,
		Message: broker.Message{ID: id, Topic: "orders", OrderingKey: orderingKey}}
}

func TestALookAtTheShelfTravelsWithTheClaims(t *testing.T) {
	fresh := func(*pgstore.Store) once.ClaimRequest { return newForeseen() }
	released := func(s *pgstore.Store) once.ClaimRequest { // whose key has a row, and is free
		r := newRequest()
		rec, err := s.Claim(t.Context(), r)
		if err == nil {
			set := done(rec, "")
			set.Status, set.Outcome = once.Absent, once.Outcome{}
			err = s.Settle(t.Context(), set)
		}
		if err != nil {
			t.Fatal(err)
		}
		r = newForeseen()
		r.Key = rec.Key
		return r
	}
	for name, test := range map[string]struct {
		requests []func(*pgstore.Store) once.ClaimRequest
		trips    int64 // with BEGIN, the claims, the look, the settlements and COMMIT
	}{
		"an outcome that is known":     {of(fresh), 2},
		"an outcome that is not known": {of(func(*pgstore.Store) once.ClaimRequest { return newLast() }), 2},
		"several keys":                 {of(fresh, fresh), 2},
		// The look comes again after a claim in a later round trip.
		"a free key with a row":       {of(released), 4},
		"several, and one with a row": {of(fresh, released), 5},
		"an end that is not foreseen": {of(func(*pgstore.Store) once.ClaimRequest { return newRequest() }), 3},
		"speculation": {of(func(*pgstore.Store) once.ClaimRequest {
			r := newForeseen()
			r.Speculative = true
			return r
		}), 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, orders := range [][]string{{"free", "held", "more"}, {"more", "held"}, {"free"}, {"held"}} {
				var want []string
				if slices.Contains(orders, "held") {
					want = []string{"held"}
				}
				testLookAhead(t, test.requests, orders, want, test.trips)
			}
		})
	}
}

func of(requests ...func(*pgstore.Store) once.ClaimRequest) []func(*pgstore.Store) once.ClaimRequest {
	return requests
}

func testLookAhead(t *testing.T, requests []func(*pgstore.Store) once.ClaimRequest, orders, want []string, trips int64) {
	t.Helper()
	w := &wire{}
	f := newFixture(t, w.into, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	if err := f.Shelve(t.Context(), []store.Shelved{aside("1", "held")}); err != nil {
		t.Fatal(err)
	}
	ctx := store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: []string{"free", "held", "more"}})
	run := func() int64 {
		var rs []once.ClaimRequest
		for _, request := range requests {
			rs = append(rs, request(f.Store))
		}
		before := w.trips.Load()
		_, err := f.Transact(ctx, rs, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
			got, err := f.BlockedTx(ctx, tx, "bills", orders, false)
			if !slices.Equal(got, want) {
				t.Errorf("of %q, %q are blocked", orders, got)
			}
			var sets []once.Settlement
			for _, rec := range recs {
				sets = append(sets, done(rec, "ok"))
			}
			return sets, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return w.trips.Load() - before
	}
	run() // prepares statements
	if n := run(); n != trips {
		t.Errorf("it took %d round trips, want %d", n, trips)
	}
}

// The look counts once, for its own question, and not after other statements.
func TestALookAheadIsNotKept(t *testing.T) {
	f := newFixture(t)
	ctx := store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: []string{"a", "b"}})
	ask := func(tx pgx.Tx, parkedToo bool, orders ...string) []string {
		got, err := f.BlockedTx(ctx, tx, "bills", orders, parkedToo)
		if err != nil {
			t.Error(err)
		}
		return got
	}
	for name, work := range map[string]func(tx pgx.Tx) []string{
		"first shelved": func(tx pgx.Tx) []string {
			if err := f.ShelveTx(ctx, tx, []store.Shelved{aside("of its own", "a")}); err != nil {
				t.Error(err)
			}
			return ask(tx, false, "a", "b")
		},
		"asked twice": func(tx pgx.Tx) []string {
			ask(tx, false, "a", "b")
			if err := f.Shelve(ctx, []store.Shelved{aside("another", "a")}); err != nil {
				t.Error(err)
			}
			return ask(tx, false, "a", "b")
		},
		"other keys": func(tx pgx.Tx) []string {
			if err := f.Shelve(ctx, []store.Shelved{aside("more", "c")}); err != nil {
				t.Error(err)
			}
			return ask(tx, false, "c")
		},
		"parked too": func(tx pgx.Tx) []string {
			m := aside("parked", "b")
			m.State = store.Parked
			if err := f.Shelve(ctx, []store.Shelved{m}); err != nil {
				t.Error(err)
			}
			return ask(tx, true, "b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := f.pool.Exec(t.Context(), `DELETE FROM `+f.schema+`.once_shelf`); err != nil {
				t.Fatal(err)
			}
			if _, err := transact(ctx, f.Store, newForeseen(), func(tx pgx.Tx) error {
				if got := work(tx); len(got) != 1 {
					t.Errorf("%q are blocked, want one", got)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A look counts only before other statements of the work, however they are sent.
func TestALookAheadEndsWithAnyStatement(t *testing.T) {
	f := newFixture(t)
	ctx := store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: []string{"a"}})
	shelve := func(t *testing.T) { // by others, in a transaction of their own
		if err := f.Shelve(ctx, []store.Shelved{aside("another", "a")}); err != nil {
			t.Error(err)
		}
	}
	for name, before := range map[string]func(*testing.T, pgx.Tx) error{
		"Exec": func(t *testing.T, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1")
			shelve(t)
			return err
		},
		"SendBatch": func(t *testing.T, tx pgx.Tx) error {
			b := new(pgx.Batch)
			b.Queue("SELECT 1")
			err := tx.SendBatch(ctx, b).Close()
			shelve(t)
			return err
		},
		"CopyFrom": func(t *testing.T, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{f.schema, "effect"}, []string{"name"}, pgx.CopyFromRows([][]any{{"x"}}))
			shelve(t)
			return err
		},
		"Conn": func(t *testing.T, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, "SELECT 1")
			shelve(t)
			return err
		},
		"shelved in a savepoint": func(t *testing.T, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(in pgx.Tx) error {
				return f.ShelveTx(ctx, in, []store.Shelved{aside("of its own", "a")})
			})
		},
		"one claim": func(t *testing.T, tx pgx.Tx) error {
			shelve(t)
			_, err := f.ClaimTx(ctx, tx, []once.ClaimRequest{newRequest()})
			return err
		},
		"two claims": func(t *testing.T, tx pgx.Tx) error {
			shelve(t)
			_, err := f.ClaimTx(ctx, tx, []once.ClaimRequest{newRequest(), newRequest()})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, f.pool, `DELETE FROM `+f.schema+`.once_shelf`)
			if _, err := transact(ctx, f.Store, newForeseen(), func(tx pgx.Tx) error {
				if err := before(t, tx); err != nil {
					return err
				}
				got, err := f.BlockedTx(ctx, tx, "bills", []string{"a"}, false)
				if len(got) != 1 {
					t.Errorf("after %s, %q are blocked, want a", name, got)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// All exec modes of pgx answer a look, alone and with the claims.
func TestALookAheadInEachMode(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			if err := f.Shelve(t.Context(), []store.Shelved{aside("1", "a"), aside("2", "b")}); err != nil {
				t.Fatal(err)
			}
			for _, keys := range [][]string{{"a"}, {"c"}, {"a", "c", "b"}, {"", "a", "a"}, {""}, nil} {
				want := 0
				for i, k := range keys {
					if k == "a" && (i == 0 || keys[i-1] != "a") || k == "b" {
						want++
					}
				}
				for _, ctx := range []context.Context{t.Context(), store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: keys})} {
					for _, rs := range [][]once.ClaimRequest{{newForeseen()}, {newLast()}, {newForeseen(), newForeseen()}, {newRequest()}} {
						_, err := f.Transact(ctx, rs, func(tx pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
							got, err := f.BlockedTx(ctx, tx, "bills", keys, false)
							seen := map[string]bool{}
							for _, k := range got {
								seen[k] = true
							}
							if len(seen) != want {
								t.Errorf("of %q, %q are blocked", keys, got)
							}
							for _, rec := range recs {
								sets = append(sets, done(rec, "ok"))
							}
							return sets, err
						})
						if err != nil {
							t.Fatalf("%q: %v", keys, err)
						}
					}
				}
			}
		})
	}
}

// atTaken calls a function before takenSQL is sent.
type atTaken struct{ do atomic.Pointer[func()] }

func (a *atTaken) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "known.*") {
		if do := a.do.Swap(nil); do != nil {
			(*do)()
		}
	}
	return ctx
}
func (*atTaken) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A record that a batch meets was read after the look. What was committed
// before that record must show.
func TestALookAheadIsNotOlderThanARecordThatWasMet(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"without look": t.Context(),
		"with look":    store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: []string{"a", "b"}}),
	} {
		t.Run(name, func(t *testing.T) {
			var hook atTaken
			f := newFixture(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &hook })
			other := f.again(t)
			first, second := newRequest(), newRequest()
			rec, err := other.Claim(t.Context(), first)
			if err != nil {
				t.Fatal(err)
			}
			do := func() { // another process sets an earlier message aside, and then finishes the first one
				if err := other.Shelve(t.Context(), []store.Shelved{aside("0", "a")}); err != nil {
					t.Error(err)
				}
				if err := other.Settle(t.Context(), done(rec, "ok")); err != nil {
					t.Error(err)
				}
			}
			hook.do.Store(&do)
			first.Owner = random()
			_, err = f.Transact(ctx, []once.ClaimRequest{first, second}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
				got, err := f.BlockedTx(ctx, tx, "bills", []string{"a"}, false)
				t.Logf("the first is %v, the second is ours: %v, blocked: %q", recs[0].Status, recs[1].HeldBy(second.Owner), got)
				if recs[0].Status == once.Done && len(got) != 1 {
					t.Errorf("the first message is %v, and what was set aside before that does not show", recs[0].Status)
				}
				return []once.Settlement{done(recs[1], "ok")}, err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A look that is sent again, because a prepared statement was gone, has only the
// new answer.
func TestALookAheadThatIsSentAgainForgetsTheFirstAnswer(t *testing.T) {
	var hook atTaken
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &hook; cfg.MaxConns = 1 })
	known := newRequest()
	ctx := store.WithBlocked(t.Context(), &store.BlockedQuery{Consumer: "bills", OrderingKeys: []string{"a", "b"}})
	run := func(asked func(got []string)) {
		rs := []once.ClaimRequest{known, newRequest()}
		rs[0].Owner = random()
		if _, err := f.Transact(ctx, rs, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
			got, err := f.BlockedTx(ctx, tx, "bills", []string{"a"}, false)
			asked(got)
			return []once.Settlement{done(recs[1], "ok")}, err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := transact(t.Context(), f.Store, known, nothing); err != nil {
		t.Fatal(err)
	}
	run(func([]string) {})
	run(func([]string) {}) // everything is prepared
	if err := f.Shelve(ctx, []store.Shelved{aside("0", "a")}); err != nil {
		t.Fatal(err)
	}
	var name string
	if err := f.pool.QueryRow(ctx, `SELECT name FROM pg_prepared_statements WHERE statement LIKE '%known.*%' AND statement NOT LIKE '%pg_prepared%'`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	must(t, f.pool, `DEALLOCATE "`+name+`"`)
	do := func() { must(t, f.admin, `DELETE FROM `+f.schema+`.once_shelf`) }
	hook.do.Store(&do)
	run(func(got []string) {
		if len(got) != 0 {
			t.Errorf("%q are blocked, by nothing", got)
		}
	})
}
