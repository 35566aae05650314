//go:build go1.25

package oncetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// totals are what the report of a year counts.
type totals struct {
	days     int
	calls    int
	answers  int // guarded by the mutex of the ledger, like effects
	effects  int
	kills    int
	stalls   int
	replayed int // by people
	given    int // up, by people
	held     int // by people
	outages  int
	faults   map[sim.FaultKind]int
	slowest  time.Duration // from the last fault of a day until everything was done
	attempts atomic.Int64
	sent     atomic.Int64 // over the network
	messages atomic.Int64
	copied   atomic.Int64
}

func newTotals() *totals { return &totals{faults: make(map[sim.FaultKind]int)} }

// add adds a day.
func (c *totals) add(r *sim.Result) {
	c.days++
	c.calls += r.Calls
	for _, l := range r.History {
		c.faults[l.Fault]++
		switch {
		case l.What == "DIES" && isInstance(l.Who):
			c.kills++
		case l.What == "STALLS" && isInstance(l.Who):
			c.stalls++
		case l.What == "DOWN":
			c.outages++
		case l.What == personReplays:
			c.replayed++
		case l.What == personDiscards:
			c.given++
		case l.What == personParks:
			c.held++
		}
	}
}

func isInstance(who string) bool { return strings.HasPrefix(who, "instance") }

// report says what happened in a year in which all laws held.
func (y *year) report(took time.Duration) string {
	c := y.totals
	waiting, gaveUp, rejected := 0, 0, 0
	for _, r := range y.requests {
		switch {
		case r.waits:
			waiting++
		case r.answer == nil:
			gaveUp++
		case r.answer.rejected:
			rejected++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d days of %d instances with seed %d, in %v. All laws held.\n", c.days, y.Instances, y.Seed, took.Round(100*time.Millisecond))
	fmt.Fprintf(&b, "  happened: %d requests in %d attempts, %d messages, %d effects, %d calls to the store, the broker and systems outside.\n",
		len(y.requests), c.attempts.Load(), c.messages.Load(), c.effects, c.calls)
	fmt.Fprintf(&b, "  faults:   instances were killed %d times and stalled %d times. There were %d outages, and %d copies of messages.\n",
		c.kills, c.stalls, c.outages, c.copied.Load())
	fmt.Fprintf(&b, "            Calls failed %d times, lost their reply %d times, hung %d times, and arrived late %d times or twice %d times.\n",
		c.faults[sim.Before], c.faults[sim.After], c.faults[sim.Hang], c.faults[sim.Late], c.faults[sim.Twice])
	fmt.Fprintf(&b, "  held:     %s for each request. %d answers, and never two different ones.\n", y.promised(), c.answers)
	fmt.Fprintf(&b, "            Each request had all of its effects or none. %d were rejected, and %d were given up by their customers unanswered.\n",
		rejected, gaveUp)
	fmt.Fprintf(&b, "            Everything was done %v after the last fault of a day, at the latest.\n", c.slowest.Round(time.Second))
	if y.People > 0 {
		fmt.Fprintf(&b, "  people:   %d times a message was replayed, %d times discarded, and %d times held in the outbox.\n", c.replayed, c.given, c.held)
	}
	if waiting > 0 {
		fmt.Fprintf(&b, "  aside:    %d requests wait for a person: they are parked, stuck, or in a queue of dead letters.\n", waiting)
	}
	return b.String()
}

// promised says how often each effect happened.
func (y *year) promised() string {
	of := make(map[Promise][]string)
	for _, e := range y.Effects {
		of[e.Promise] = append(of[e.Promise], e.Name)
	}
	var parts []string
	for p, says := range []string{Once: "happened once", AtMostOnce: "happened at most once", AtLeastOnce: "happened at least once"} {
		if names := of[Promise(p)]; len(names) > 0 {
			parts = append(parts, strings.Join(names, ", ")+" "+says)
		}
	}
	return strings.Join(parts, "; ")
}

const maxStory = 60 // lines

// explain tells how a day broke a law: first in sentences, then call by call.
func (s *shrinker) explain() string {
	first := s.result.Broken[0]
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n  law:     %s\n  seen:    %s\n  day:     %d of %d\n", first.About, says[first.Law], first.Law, first.Note,
		s.day.number, s.day.Days)
	if others := len(s.result.Broken) - 1; others > 0 {
		fmt.Fprintf(&b, "  also:    %d more breaks on this day\n", others)
	}
	if s.found {
		fmt.Fprintf(&b, "  enough:  %s\n", s.size())
	}
	lines := story(s.result.History, first)
	b.WriteString("  story:   in seconds since the morning\n")
	b.WriteString(told(lines))
	if cut := len(lines) - maxStory; cut > 0 {
		fmt.Fprintf(&b, "  calls:   without %d lines before\n", cut)
		lines = lines[cut:]
	} else {
		b.WriteString("  calls:\n")
	}
	b.WriteString(sim.Print(lines))
	return b.String()
}

// story returns what happened to a request, and to the whole world, until a law was
// broken.
func story(history []sim.Line, b sim.Break) (lines []sim.Line) {
	for _, l := range history {
		if l.At > b.At {
			break
		}
		happened := l.Nth == 0 && l.About == "" && (l.Who == "" || isInstance(l.Who)) || l.What == "DOWN" || l.What == "BACK"
		if happened || strings.Contains(l.About, b.About) {
			lines = append(lines, l)
		}
	}
	return lines
}
