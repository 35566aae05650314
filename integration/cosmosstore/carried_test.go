//go:build linux

package cosmosstore

import (
	"testing"

	"github.com/effectively-once/once/integration/internal/carried"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

// The imitation reads and writes a list of a thousand messages for each of them,
// which takes minutes. Redis, whose store has the same engine, is always tested.
func TestTheStoreCarriesMessages(t *testing.T) {
	if proof.Soaking(t) == 0 {
		t.Skip("make soak does that: it takes minutes on an imitation")
	}
	carried.Run(t, func(tb testing.TB) carried.Store {
		s := fakecosmos.New()
		tb.Cleanup(s.Close)
		proof.Must(tb, create(tb.Context(), s.URL))
		o, err := open(s.URL, &cosmosstore.Options{})
		proof.Must(tb, err)
		return o.store
	})
}
