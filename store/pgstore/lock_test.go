package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

func (f *fixture) withSecret(secret string) *pgstore.Store {
	return pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Options: once.Options{Secret: []byte(secret)}})
}

// Whoever may connect can take any advisory lock. Without the secret, nobody can
// tell which one is that of a key.
func TestAStrangerCannotComputeTheLockOfAKey(t *testing.T) {
	f, r := newFixture(t), newRequest()
	names, err := sqlschema.For(sqlschema.PostgreSQL, f.schema, "")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Rollback(context.WithoutCancel(t.Context()))
	for _, guess := range []sqlschema.Names{names, names.WithSecret([]byte("another"))} {
		if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", guess.Lock(r.Key.UUID())); err != nil {
			t.Fatal(err)
		}
	}
	if rec, err := f.Claim(t.Context(), r); err != nil || rec.HeldBy(r.Owner) {
		t.Errorf("without a secret, the claim gets %v, %v: the test takes the wrong lock", rec.Status, err)
	}
	rec, err := f.withSecret("the secret").Claim(t.Context(), r)
	if err != nil || !rec.HeldBy(r.Owner) {
		t.Errorf("the claim gets %v, %v, want its key", rec.Status, err)
	}
}

// While a secret is changed, stores with and without it do not see each other's
// locks. The primary key decides: each key has one effect.
func TestStoresWithDifferentSecretsMakeOneEffect(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{Wait: time.Minute}}
	stores := []*pgstore.Store{f.withSecret(""), f.withSecret("old"), f.withSecret("new")}
	var all sync.WaitGroup
	for i := range 20 {
		id := fmt.Sprint("key", i)
		for _, s := range stores {
			all.Go(func() {
				_, err := once.DoTx(t.Context(), s, op.For(id), func(ctx context.Context, tx pgx.Tx) (int, error) { return i, f.write(ctx, tx, id) })
				if err != nil && !errors.Is(err, once.ErrInProgress) {
					t.Errorf("%s: %v", id, err)
				}
			})
		}
	}
	all.Wait()
	for i := range 20 {
		if n := f.count(t, fmt.Sprint("key", i)); n != 1 {
			t.Errorf("key%d has %d effects", i, n)
		}
	}
}
