package sim

import (
	"time"

	"github.com/effectively-once/once/internal/rewind"
	"github.com/effectively-once/once/store"
)

// FailOver has another server take over as the store after a while, which lacks what
// is committed from now on. It is down for a while then. lost is called when the old
// server has taken its last commit.
func (s *Store) FailOver(lacks, down time.Duration, lost func()) {
	restore := rewind.Save(s.Store)
	if Sleep(s.world.running, lacks) != nil {
		return
	}
	s.world.Tell(Line{What: "FAILS OVER", About: string(StoreName)})
	s.world.setDown(StoreName, 1)
	restore()
	s.mu.Lock()
	s.lanes = [store.Lanes]LaneHold{}
	s.mu.Unlock()
	lost()
	_ = Sleep(s.world.running, down)
	s.world.setDown(StoreName, -1)
}

// CalledSince calls f with each call of the history that began at a time or later.
func (w *World) CalledSince(at time.Duration, f func(who, about string)) {
	w.mu.Lock()
	lines := w.result.History
	w.mu.Unlock()
	for _, l := range lines {
		if l.At >= at && l.Nth > 0 {
			f(l.Who, l.About)
		}
	}
}

// HasWord reports whether a text about objects names one.
func HasWord(about, object string) bool { return hasWord(about, object) }
