package sqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// In MySQL, a claim is given up when it takes longer than its bound. Only if
// the row is locked, an open transaction was the reason.
func TestASlowClaimOfAFreeKeyIsNotInProgress(t *testing.T) {
	_, db := engines[2].migrated(t, "interpolateParams=true")
	claims := 0
	s := sqlstore.New(hooked(t, db, func(ctx context.Context, query string) func() {
		if strings.HasPrefix(query, "INSERT INTO `once_record`") {
			if claims++; claims%2 == 1 {
				<-ctx.Done() // longer than the bound, as on a busy machine
			}
		}
		return func() {}
	}), sqlstore.MySQL, nil)
	rec, err := s.Claim(t.Context(), request("claim", "a"))
	if must(t, err); rec.Owner != token("a") {
		t.Errorf("Claim returned %+v, want the key, which nobody holds", rec)
	}
	recs, err := s.Transact(t.Context(), []once.ClaimRequest{request("transact", "a")}, doing(func(tx *sql.Tx) error {
		return effect(t.Context(), tx, "slow")
	}))
	if must(t, err); recs[0].Owner != token("a") || count(t, db, "slow") != 1 {
		t.Errorf("Transact returned %+v, want the key, which nobody holds", recs)
	}
	if claims < 4 {
		t.Errorf("%d claims were made, want two for each: the first is given up", claims)
	}
}
