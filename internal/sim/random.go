//go:build go1.26

package sim

import (
	"testing"
	"testing/cryptotest"
)

func seedRandom(t *testing.T, seed Seed) { cryptotest.SetGlobalRandom(t, uint64(seed)) }
