//go:build linux

package cosmosstore

import (
	"testing"

	"github.com/effectively-once/once/integration/internal/carried"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

func TestTheStoreCarriesMessages(t *testing.T) {
	carried.Run(t, func(tb testing.TB) carried.Store {
		s := fakecosmos.New()
		tb.Cleanup(s.Close)
		proof.Must(tb, create(tb.Context(), s.URL))
		o, err := open(s.URL, &cosmosstore.Options{})
		proof.Must(tb, err)
		return o.store
	})
}
