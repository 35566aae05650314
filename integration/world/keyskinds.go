package world

import (
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
)

func keysSettings(seed sim.Seed) sim.Settings {
	d := seed.Draw("settings of keys")
	s := sim.Settings{Seed: seed, Length: 2 * time.Minute, Stall: []time.Duration{5 * time.Second, 20 * time.Second}[d.Number(2)]}
	p := []float64{.01, .03, .1}[d.Number(3)]
	s.Chances = sim.Chances{Before: d.Some(p), After: d.Some(p), Hang: d.Some(p / 3), Late: d.Some(p), Twice: d.Some(p)}
	s.Deaths, s.Stalls = d.Number(3), d.Number(2)
	if d.Chance(.5) { // a provider is often worse than a database
		p := []float64{.1, .2}[d.Number(2)]
		s.At = map[sim.Link]sim.Chances{
			Downstream: {Before: d.Some(p), After: p, Hang: d.Some(p / 2), Late: p, Twice: d.Some(p)},
		}
	}
	for _, link := range []sim.Link{sim.StoreName, Downstream} {
		if d.Chance(.3) {
			longest := []time.Duration{5 * time.Second, 20 * time.Second, 3 * time.Minute}[d.Number(3)]
			s.Outages = append(s.Outages, sim.Outage{Link: link, Times: 1 + d.Number(3), Longest: longest})
		}
	}
	return s
}

// keysSlowSettings are keysSettings in which replies may be slow: whoever waits for
// them knows less of the time than it seems.
func keysSlowSettings(seed sim.Seed) sim.Settings {
	s, d := keysSettings(seed), seed.Draw("slow replies")
	s.Chances.Slow, s.Open = []float64{0, 0, .03, .15}[d.Number(4)], d.Some(.7)
	if at, own := s.At[Downstream]; own {
		at.Slow = d.Some(.1)
		s.At[Downstream] = at
	}
	for _, link := range []sim.Link{sim.HostLink("caller1"), sim.HostLink("reconciler"), sim.WayLink("caller1"), sim.WayLink("caller2")} {
		if d.Chance(.2) {
			longest := []time.Duration{10 * time.Second, time.Minute}[d.Number(2)]
			s.Outages = append(s.Outages, sim.Outage{Link: link, Times: 1 + d.Number(3), Longest: longest})
		}
	}
	return s
}

// memoryPlan is a world of keys on the store in memory.
func memoryPlan(seed sim.Seed) KeysPlan {
	d, p := seed.Draw("plan of a store in memory"), keysPlan(seed)
	p.Large, p.Limit, p.Plain = d.Some(.2), 500, d.Chance(.5)
	p.Stray, p.Abandoned = d.Some(.15), d.Some(.3)
	if d.Chance(.4) {
		p.Recalls = d.Between(10*time.Second, time.Minute)
	}
	p.Resumes, p.Pace = d.Chance(.3), d.Some(.03)
	return p
}

func keysPlan(seed sim.Seed) KeysPlan {
	d := seed.Draw("plan of keys")
	p := KeysPlan{Keys: []int{2, 3, 6}[d.Number(3)], Processes: 2 + d.Number(2), Rounds: 1 + d.Number(3), Persons: 1 + d.Number(2),
		Every: 10 * time.Second, Refused: d.Some(.5), Failing: d.Some(.3), Panics: d.Some(.2), Slow: d.Some(.3),
		Slowest: []time.Duration{5 * time.Second, 40 * time.Second}[d.Number(2)], Drain: 20 * time.Minute}
	p.Settles = []time.Duration{700 * time.Millisecond, 2 * time.Second, 8 * time.Second}[d.Number(3)]
	p.Policy = once.Policy{Lease: []time.Duration{2 * time.Second, 6 * time.Second, 30 * time.Second}[d.Number(3)],
		Wait: []time.Duration{once.NoWait, time.Second, 5 * time.Second}[d.Number(3)], KeepOutcome: 24 * time.Hour, KeepKey: 48 * time.Hour}
	if d.Chance(.4) {
		p.Policy.KeepOutcome = d.Between(5*time.Second, 30*time.Second)
		p.Policy.KeepKey = d.Between(45*time.Second, 90*time.Second) // longer than any call is under way
	}
	switch d.Number(4) {
	case 0:
		p.ValidFor = d.Between(10*time.Second, 40*time.Second)
	case 1: // nothing comes between the look at its age and its call
		p.ValidFor = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}[d.Number(3)]
		p.Settles, p.Slow, p.Policy.Lease = 300*time.Millisecond, 0, 30*time.Second
	}
	return p
}

func casSettings(seed sim.Seed) sim.Settings {
	s := keysSettings(seed)
	d := seed.Draw("settings of an engine")
	if isFar(seed) {
		if s.At == nil {
			s.At = make(map[sim.Link]sim.Chances)
		}
		s.At[sim.StoreName] = sim.Chances{Before: d.Some(.1), After: d.Some(.1), Late: .3}
		s.At[Downstream] = sim.Chances{After: .3, Late: .2}
	}
	return s
}

// isFar reports whether an engine is far away, or throttles: its client often gives
// up on what arrives later.
func isFar(seed sim.Seed) bool {
	d := seed.Draw("how far the engine is")
	return d.Chance(.3)
}

func casPlan(seed sim.Seed) KeysPlan {
	d, p := seed.Draw("plan of an engine"), keysPlan(seed)
	p.CAS = &CASRules{Ahead: d.Between(-time.Hour, time.Hour), Gateway: d.Some(.03), Silent: d.Chance(.3), MaxValue: 500,
		Rests: 20 * time.Second, ClaimFirst: d.Chance(.3)}
	p.CAS.Lease = p.Policy.Lease
	p.CAS.Astray = p.CAS.Ahead + time.Duration(1-2*d.Number(2))*time.Hour
	p.Large, p.Fleeting = d.Some(.2), []float64{0, .5, 1}[d.Number(3)]
	p.CAS.Patience, p.Speculative = []time.Duration{0, time.Second, 5 * time.Second}[d.Number(3)], d.Chance(.2)
	if d.Chance(.3) {
		p.LookupTakes = time.Minute
	}
	if p.Policy.KeepKey < time.Hour { // not much longer than a call is under way
		p.Policy.KeepOutcome, p.Policy.KeepKey = d.Between(5*time.Second, 20*time.Second), d.Between(25*time.Second, time.Minute)
	}
	if d.Chance(.4) {
		p.Moved, p.CAS.ClaimFirst = .5, d.Chance(.5)
	}
	if isFar(seed) && d.Chance(.5) { // a lease is over before a client gives up, and callers wait for no longer
		p.Hasty, p.Moved, p.ValidFor, p.CAS.ClaimFirst = .6, .5, 0, true
		p.CAS.Patience, p.Policy.Lease, p.CAS.Lease = 5*time.Second, 2*time.Second, 2*time.Second
	}
	if p.CAS.ClaimFirst { // such claims are not extended
		p.Slowest = p.Policy.Lease / 2
	}
	return p
}

func httpSettings(seed sim.Seed) sim.Settings {
	s := keysSettings(seed)
	d := seed.Draw("settings of requests")
	if d.Chance(.3) {
		s.Outages = append(s.Outages, sim.Outage{Link: Network, Times: 1 + d.Number(3),
			Longest: []time.Duration{5 * time.Second, time.Minute}[d.Number(2)]})
	}
	return s
}

func httpPlan(seed sim.Seed) HTTPPlan {
	d, p := seed.Draw("plan of requests"), keysPlan(seed)
	if d.Chance(.3) {
		p = casPlan(seed)
	}
	p.Policy.KeepOutcome, p.Policy.KeepKey = 24*time.Hour, 48*time.Hour
	p.Large, p.Rounds = 0, 1+d.Number(2)
	return HTTPPlan{KeysPlan: p, Servers: 1 + d.Number(2), Patience: []time.Duration{5 * time.Second, time.Minute}[d.Number(2)],
		Halves: d.Some(.1)}
}
