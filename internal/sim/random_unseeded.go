//go:build go1.25 && !go1.26

package sim

import "testing"

// SeedRandom does nothing before Go 1.26.
func SeedRandom(*testing.T, Seed) {}
