package world

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

// patienceOfWatchdog is the real time after which a world is stalled. An hour of a
// world has tens of thousands of steps a second, even on a busy machine.
const patienceOfWatchdog = time.Minute

// Play runs a world in a bubble of fake time, with crypto/rand seeded.
func Play(t *testing.T, k Kind, s Settings) (r *Result) {
	t.Helper()
	progress := new(atomic.Int64)
	dog := watch(progress, patienceOfWatchdog, func(report string) {
		fmt.Fprintf(os.Stderr, "seed %d, kind %s: %s\n", s.Seed, k.Name, report)
		os.Exit(3)
	})
	defer dog.end()
	t.Run(fmt.Sprintf("%s/%d", k.Name, s.Seed), func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, uint64(s.Seed))
		synctest.Test(t, func(*testing.T) {
			w := New(s)
			w.progress = progress
			r = k.Run(w)
		})
	})
	return r
}
