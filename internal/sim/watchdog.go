package sim

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// Watchdog watches in real time. A world that makes no progress is stalled: a
// goroutine waits for something that fake time does not bring, such as a mutex, or
// never waits.
type Watchdog struct {
	progress *atomic.Int64
	patience time.Duration
	stalled  func(report string)
	stop     chan struct{}
}

// Watch begins to watch, outside of any bubble.
func Watch(progress *atomic.Int64, patience time.Duration, stalled func(report string)) *Watchdog {
	d := &Watchdog{progress: progress, patience: patience, stalled: stalled, stop: make(chan struct{})}
	go d.run()
	return d
}

func (d *Watchdog) run() {
	tick := time.NewTicker(d.patience / 4)
	defer tick.Stop()
	seen, since := d.progress.Load(), time.Now()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		if now := d.progress.Load(); now != seen {
			seen, since = now, time.Now()
		} else if time.Since(since) > d.patience {
			d.stalled(fmt.Sprintf("the world has made no progress for %v of real time, after %d steps:\n%s", d.patience, seen, Stacks()))
			return
		}
	}
}

// End ends the watch.
func (d *Watchdog) End() { close(d.stop) }

// Stacks returns the stacks of all goroutines, which are few at the end of most
// worlds.
func Stacks() string {
	for size := 16 << 10; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= 1<<20 {
			return string(buf[:n])
		}
	}
}
