package sqlstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/effectively-once/once/store"
)

func TestBlockedOfAnyNumberOfKeys(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		waiting, parked := map[string]bool{}, map[string]bool{}
		var ms []store.Shelved
		for i := range 200 {
			k := fmt.Sprint("k", i)
			m := aside(k, k)
			switch rand.IntN(4) {
			case 0:
				waiting[k] = true
			case 1:
				m.State, parked[k] = store.Parked, true
			case 2:
				m.State = store.Discarded
			default:
				continue
			}
			ms = append(ms, m)
		}
		must(t, s.Shelve(t.Context(), ms))
		for _, n := range []int{0, 1, 2, 7, 8, 9, 63, 64, 65, 72, 73, 128, 129, 200} {
			for _, parkedToo := range []bool{false, true} {
				var keys []string
				for _, i := range rand.Perm(200)[:n] {
					keys = append(keys, fmt.Sprint("k", i))
				}
				asked := slices.Clone(keys)
				asked = append(asked, keys[:n/3]...)
				asked = append(asked, "", "")
				rand.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
				var want []string
				for _, k := range keys {
					if waiting[k] || parkedToo && parked[k] {
						want = append(want, k)
					}
				}
				tx, err := db.BeginTx(t.Context(), nil)
				must(t, err)
				got, err := s.BlockedTx(t.Context(), tx, "billing", asked, parkedToo)
				must(t, errors.Join(err, tx.Rollback()))
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%d keys, %v: got %q, want %q", n, parkedToo, got, want)
				}
			}
		}
	})
}
