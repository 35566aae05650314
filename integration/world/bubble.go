package world

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// patienceOfWatchdog is the real time after which a world is stalled. An hour of a
// world has tens of thousands of steps a second, even on a busy machine.
const patienceOfWatchdog = time.Minute

// StallExit is the exit code of a process whose world makes no progress.
const StallExit = 3

// Play runs a world in a bubble of fake time, with crypto/rand seeded.
func Play(t *testing.T, k Kind, s sim.Settings) (r *sim.Result) {
	t.Helper()
	s.Progress = new(atomic.Int64)
	dog := sim.Watch(s.Progress, patienceOfWatchdog, func(report string) {
		fmt.Fprintf(os.Stderr, "seed %d, kind %s: %s\n", s.Seed, k.Name, report)
		os.Exit(StallExit)
	})
	defer dog.End()
	t.Run(fmt.Sprintf("%s/%d", k.Name, s.Seed), func(t *testing.T) {
		sim.Bubble(t, s.Seed, func() { r = k.Run(sim.New(s)) })
	})
	return r
}
