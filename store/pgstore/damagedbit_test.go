package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// One damaged bit in the time until which a key is kept does not make finished
// work run again, whichever statement claims it, and Forget does not delete the
// record.
func TestADamagedBitKeepsWorkDone(t *testing.T) {
	for name, f := range map[string]*fixture{"one table": newFixture(t), "partitions": newPartitioned(t, time.Hour)} {
		t.Run(name, func(t *testing.T) {
			requests := make([]once.ClaimRequest, 63)
			for bit := range requests {
				r := newRequest()
				rec, err := f.Claim(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				set := done(rec, "answer")
				set.KeepOutcome, set.KeepKey = 0, 7*24*time.Hour
				if err := f.Settle(t.Context(), set); err != nil {
					t.Fatal(err)
				}
				must(t, f.admin, `UPDATE `+f.records()+` SET key_until = key_until # (1::bigint << $2::int) WHERE key = $1`, r.Key.String(), bit)
				requests[bit] = r
			}
			if _, err := f.Forget(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
			corrupt := 0
			for bit, r := range requests {
				for how, claim := range map[string]func() (once.Record, error){
					"Claim": func() (once.Record, error) { return f.Claim(t.Context(), rival(r)) },
					"Transact": func() (once.Record, error) {
						return transact(t.Context(), f.Store, rival(r), func(pgx.Tx) error {
							t.Errorf("after a flip of bit %d, the work ran again", bit)
							return nil
						})
					},
				} {
					rec, err := claim()
					switch {
					case errors.Is(err, once.ErrCorrupt):
						corrupt++
					case err != nil || rec.Status != once.Done && rec.Status != once.Expired:
						t.Errorf("after a flip of bit %d, %s returned %v, %v", bit, how, rec.Status, err)
					}
				}
			}
			if corrupt < 6 {
				t.Errorf("%d claims found a damaged record", corrupt)
			}
		})
	}
}
