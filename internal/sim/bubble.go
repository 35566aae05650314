//go:build go1.25

package sim

import (
	"testing"
	"testing/synctest"
)

// Bubble runs a world in a bubble of fake time, with crypto/rand seeded. Go 1.25
// cannot seed it, and plays a history again only roughly.
func Bubble(t *testing.T, seed Seed, run func()) {
	t.Helper()
	SeedRandom(t, seed)
	synctest.Test(t, func(*testing.T) { run() })
}
