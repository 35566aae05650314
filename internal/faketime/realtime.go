//go:build !go1.25

// Package faketime runs tests in which nobody waits for time to pass.
package faketime

import "testing"

// Test runs a test in real time, because Go 1.24 has no bubbles.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	test(t)
}

// Long skips a test that would wait for minutes.
func Long(t *testing.T, _ func(t *testing.T)) {
	t.Helper()
	t.Skip("it waits for minutes, and Go 1.24 has no bubbles of fake time")
}
