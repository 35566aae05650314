//go:build go1.26

package sim

import (
	"testing"
	"testing/cryptotest"
)

// SeedRandom seeds crypto/rand, until the end of the test.
func SeedRandom(t *testing.T, seed Seed) { cryptotest.SetGlobalRandom(t, uint64(seed)) }
