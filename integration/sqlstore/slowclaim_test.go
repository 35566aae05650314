package sqlstore_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// TestASlowClaimOfAFreeKeyIsNotInProgress is MySQL's, where a claim that takes longer than its bound is given up. Only if
// the row is locked is that because of a transaction in flight.
func TestASlowClaimOfAFreeKeyIsNotInProgress(t *testing.T) {
	_, db := engines[2].migrated(t, "interpolateParams=true")
	slow := 0
	s := sqlstore.New(hooked(t, db, func(query string) func() {
		if strings.HasPrefix(query, "INSERT INTO `once_record`") {
			slow++
			<-time.After(400 * time.Millisecond) // as long as a machine under load may take, and longer than the bound
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
	if slow < 4 {
		t.Errorf("%d claims were slow, want two for each: the first is given up", slow)
	}
}
