package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// Do records no outcome that the database refuses, and DoTx rolls back.
func TestRefusedOutcomes(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `ALTER TABLE `+f.records()+` ADD CHECK (length(outcome) <= 1000)`)
	large := strings.Repeat("x", 2000)
	op := &once.Operation[string]{Name: "large", OnUnknown: once.Park}
	got, err := once.Do(t.Context(), f.Store, op.For("1"), func(context.Context, once.Key) (string, error) { return large, nil })
	if got != large || err != nil {
		t.Errorf("Do: %d bytes, %v", len(got), err)
	}
	_, err = once.Do(t.Context(), f.Store, op.For("1"), func(context.Context, once.Key) (string, error) { return "", errors.New("run again") })
	wantError(t, err, once.ErrOutcomeUnavailable)
	for name, speculative := range map[string]bool{"claimed": false, "speculative": true} {
		op := &once.Operation[string]{Name: "large", Speculative: speculative}
		_, err := once.DoTx(t.Context(), f.Store, op.For(name), func(ctx context.Context, tx pgx.Tx) (string, error) {
			return large, f.write(ctx, tx, name)
		})
		wantError(t, err, once.ErrOutcomeRefused)
		wantStatus(t, f, op.For(name).Key(), once.Absent)
		f.want(t, name, 0)
	}
}
