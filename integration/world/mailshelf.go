package world

import (
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// decideSettings are those of a small world in which people are what troubles
// consumers.
func decideSettings(seed sim.Seed) sim.Settings {
	d := seed.Draw("settings of decisions")
	s := sim.Settings{Seed: seed, Length: time.Minute, Stall: 15 * time.Second, Deaths: d.Number(3), Stalls: d.Number(5) / 4}
	p := []float64{.01, .03, .1}[d.Number(3)]
	s.Chances = sim.Chances{Before: d.Some(p), After: d.Some(p), Hang: d.Some(p / 3), Late: d.Some(p / 3), Twice: d.Some(p)}
	s.Slow = []float64{0, .1}[d.Number(2)]
	return s
}

// decideMail is a small world in which people decide about the same messages at the
// same moments.
func decideMail(seed sim.Seed) MailPlan {
	d := seed.Draw("plan of decisions")
	p := MailPlan{Topics: []string{"a"}, Keys: 1 + d.Number(2), PerKey: 8, Relays: 1, Processes: 1 + d.Number(2), Bursts: d.Chance(.7),
		Unordered: d.Chance(.4), Attempts: 2 + d.Number(2), Flaky: d.Some(.3), Stubborn: .5, Poison: d.Some(.1), Copied: d.Some(.4), Copies: 3,
		Blind: d.Chance(.4), Operators: 2 + d.Number(2), Meet: true, Pause: 6 * time.Second, Outage: 20 * time.Second, Drain: 20 * time.Minute}
	if p.Unordered { // copies that are tried at once may fail once more each
		p.Copied = 0
	}
	if p.Plain = d.Chance(.8); p.Plain {
		p.Relay.Poll = time.Second
	}
	p.Queues = d.Chance(.3) && (p.Processes == 1 || p.Unordered)
	return p
}
