//go:build go1.25

// Package faketime runs tests in which nobody waits for time to pass.
package faketime

import (
	"testing"
	"testing/synctest"
)

// Test runs a test in a bubble of [synctest], whose clock moves on when all of
// the test waits. Go 1.24 has no bubbles, and takes the real time.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// Long is Test for a test that waits for minutes. Go 1.24 skips it.
func Long(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}
