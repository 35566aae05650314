package world

import (
	"os"
	"runtime/debug"
	"testing"
)

// A world lives for milliseconds, so memory is cheaper than collecting it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
