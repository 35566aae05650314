package world

import (
	"os"
	"runtime/debug"
	"testing"
)

// A world lives for milliseconds, so memory is cheaper than collecting it. One that
// recurses without end is to end soon.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	debug.SetMaxStack(16 << 20)
	os.Exit(m.Run())
}
