//go:build linux

package dynamostore

import (
	"net/http/httptest"
	"testing"

	"github.com/effectively-once/once/integration/internal/carried"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// The imitation reads and writes a list of a thousand messages for each of them,
// which takes minutes. Redis, whose store has the same engine, is always tested.
func TestTheStoreCarriesMessages(t *testing.T) {
	if proof.Soaking(t) == 0 {
		t.Skip("make soak does that: it takes minutes on an imitation")
	}
	carried.Run(t, func(tb testing.TB) carried.Store {
		server := httptest.NewServer(new(dynamofake.Server))
		tb.Cleanup(server.Close)
		s := dynamostore.New(dial(server.URL), nil)
		proof.Must(tb, s.CreateTable(tb.Context()))
		return s
	})
}
