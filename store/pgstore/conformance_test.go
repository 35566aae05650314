package pgstore_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/jackc/pgx/v5"
)

// The ends of transactions are foreseen: all of their records with BEGIN, or
// with COMMIT. Claims that are written as running are run by
// TestConformancePartitioned. Each call expects a new key, or, through PgBouncer,
// a duplicate: the suite has many, so that a store would soon expect nothing else.
func TestConformance(t *testing.T) {
	t.Run("direct", func(t *testing.T) {
		f := newFixture(t)
		out := once.Outcome{Body: []byte("foreseen"), Sum: 1}
		conform(t, f, false, func(t testing.TB) foreseeing { return foreseeing{Store: f.again(t), out: out} })
	})
	t.Run("PgBouncer", func(t *testing.T) {
		f := newFixture(t)
		conform(t, f, false, func(t testing.TB) deafForeseeing {
			s := pgstore.New(pool(t, bouncer(t), mode(pgx.QueryExecModeExec)), &pgstore.Options{Schema: f.schema})
			return deafForeseeing{foreseeing: foreseeing{Store: s, duplicates: true}}
		})
	})
}

// foreseeing is a store whose transactions foresee the end that storetest mostly
// gives them, but for its outcome.
type foreseeing struct {
	*pgstore.Store
	out        once.Outcome
	duplicates bool // each call expects one
}

func (s foreseeing) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	s.Expect(s.duplicates)
	return s.Store.Claim(ctx, r)
}

func (s foreseeing) ClaimTx(ctx context.Context, tx pgx.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	s.Expect(s.duplicates)
	return s.Store.ClaimTx(ctx, tx, rs)
}

func (s foreseeing) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(pgx.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	s.Expect(s.duplicates)
	rs = slices.Clone(rs)
	for i := range rs {
		if rs[i].Expected == nil {
			rs[i].Expected = &once.Settlement{Status: once.Done, Outcome: s.out, KeepOutcome: time.Hour, KeepKey: 2 * time.Hour,
				Reason: "because of done"}
		}
	}
	return s.Store.Transact(ctx, rs, body)
}

// deafForeseeing is foreseeing without the method that does not work through
// PgBouncer.
type deafForeseeing struct {
	foreseeing
	HearOutbox struct{}
}

func conform[Store once.TxStore[pgx.Tx]](t *testing.T, f *fixture, together bool, open func(testing.TB) Store) {
	h := harness(f, open)
	h.ForgetsTogether = together
	storetest.RunTx(t, h)
}

func harness[Store once.TxStore[pgx.Tx]](f *fixture, open func(testing.TB) Store) storetest.TxHarness[pgx.Tx] {
	return storetest.TxHarness[pgx.Tx]{
		Open:         func(t testing.TB) once.TxStore[pgx.Tx] { return open(t) },
		Begin:        f.pool.Begin,
		Commit:       func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback:     func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Effect:       f.write,
		SeesInFlight: true,
		Damages:      f.damages(),
		Patience:     30 * time.Second, // on a loaded machine
		Count: func(ctx context.Context, name string) (n int, err error) {
			err = f.admin.QueryRow(ctx, `SELECT count(*) FROM `+f.effects()+` WHERE name = $1`, name).Scan(&n)
			return n, err
		},
	}
}
