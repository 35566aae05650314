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

func TestTheStoreCarriesMessages(t *testing.T) {
	carried.Run(t, func(tb testing.TB) carried.Store {
		server := httptest.NewServer(new(dynamofake.Server))
		tb.Cleanup(server.Close)
		s := dynamostore.New(dial(server.URL), nil)
		proof.Must(tb, s.CreateTable(tb.Context()))
		return s
	})
}
