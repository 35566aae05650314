package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// Shrunk is a small world that breaks a law.
type Shrunk struct {
	Settings sim.Settings
	Result   *sim.Result
	Break    sim.Break
	Runs     int
}

// shrinker takes away what a broken law does not need.
type shrinker struct {
	t     *testing.T
	kind  Kind
	law   sim.Law
	about string // of the first break
	until time.Time
	best  Shrunk
}

// Shrink looks for a smaller world that breaks the law that a run broke first:
// with fewer programs and faults, and over sooner. It stops after a while.
func Shrink(t *testing.T, k Kind, s sim.Settings, r *sim.Result, limit time.Duration) Shrunk {
	first := r.Broken[0]
	sh := &shrinker{t: t, kind: k, law: first.Law, about: first.About, until: time.Now().Add(limit)}
	sh.best = Shrunk{Settings: s, Result: r, Break: first}
	sh.try(sh.only(r.Faults, sh.best.Settings))
	sh.sooner()
	sh.withoutPrograms()
	sh.fewerFaults()
	sh.withoutPrograms()
	sh.sooner()
	return sh.best
}

// only allows no other faults.
func (sh *shrinker) only(faults []sim.Fault, s sim.Settings) sim.Settings {
	s.Only = make(map[string]bool)
	for _, f := range faults {
		s.Only[f.ID] = true
	}
	return s
}

// try keeps settings with which the law is still broken.
func (sh *shrinker) try(s sim.Settings) bool {
	if time.Now().After(sh.until) {
		return false
	}
	sh.best.Runs++
	r := Play(sh.t, sh.kind, s)
	for _, b := range r.Broken {
		if b.Law == sh.law && (b.About == sh.about || sh.law != Drained && sh.law != Vanished) {
			sh.best.Settings, sh.best.Result, sh.best.Break = s, r, b
			return true
		}
	}
	return false
}

// sooner ends the faults sooner.
func (sh *shrinker) sooner() {
	for range 6 {
		last := time.Duration(0)
		for _, f := range sh.best.Result.Faults {
			last = max(last, f.At)
		}
		s := sh.best.Settings
		for _, busy := range []time.Duration{last + 10*time.Second, sh.best.Break.At, sh.best.Settings.Busy / 2} {
			if s.Busy = busy; busy > 0 && (sh.best.Settings.Busy == 0 || busy < sh.best.Settings.Busy) && sh.try(s) {
				break
			}
		}
	}
}

// withoutPrograms leaves out programs, and all faults of those that stay.
func (sh *shrinker) withoutPrograms() {
	for _, name := range sh.best.Result.Started {
		s := sh.best.Settings
		s.Without = maps.Clone(s.Without)
		if s.Without == nil {
			s.Without = make(map[string]bool)
		}
		s.Without[name] = true
		if sh.try(s) {
			continue
		}
		quiet := slices.DeleteFunc(slices.Clone(sh.best.Result.Faults), func(f sim.Fault) bool { return strings.Contains(f.ID, name+".") })
		if len(quiet) < len(sh.best.Result.Faults) {
			sh.try(sh.only(quiet, sh.best.Settings))
		}
	}
}

// fewerFaults leaves out faults: first half of them, at last one at a time.
func (sh *shrinker) fewerFaults() {
	for size := max(len(sh.best.Result.Faults)/2, 1); ; size /= 2 {
		for at := 0; at < len(sh.best.Result.Faults); {
			faults := sh.best.Result.Faults
			rest := slices.Concat(faults[:at], faults[min(at+size, len(faults)):])
			if !sh.try(sh.only(rest, sh.best.Settings)) {
				at += size
			}
		}
		if size <= 1 {
			return
		}
	}
}

// String tells the story as a person reads it.
func (s Shrunk) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "The law %q is broken, about %s, after %v:\n    %s\n", s.Break.Law, s.Break.About,
		s.Break.At.Round(time.Millisecond), s.Break.Note)
	fmt.Fprintf(&b, "The law says: %s.\n", Says(s.Break.Law))
	fmt.Fprintf(&b, "%d faults are needed, after %d runs to find out which:\n", len(s.Result.Faults), s.Runs)
	for _, f := range s.Result.Faults {
		fmt.Fprintf(&b, "%14.6f %s\n", f.At.Seconds(), f.ID)
	}
	fmt.Fprintf(&b, "What happened, in seconds:\n%s", sim.Print(s.Result.Story(s.Break)))
	return b.String()
}
