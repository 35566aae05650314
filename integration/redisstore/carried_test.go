//go:build linux

package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once/integration/internal/carried"
	"github.com/effectively-once/once/store/redisstore"
)

func TestTheStoreCarriesMessages(t *testing.T) {
	c, places := startNode(t).client(t), new(atomic.Int64)
	carried.Run(t, func(testing.TB) carried.Store {
		return redisstore.New(c, &redisstore.Options{Prefix: fmt.Sprintf("place%d:", places.Add(1))})
	})
}
