package world

import (
	"fmt"
	"time"
)

// Kind is a kind of world.
type Kind struct {
	Name  string
	About string

	// Settings draws what a world of this kind may do.
	Settings func(Seed) Settings

	// Run runs it: it starts processes, lets time pass, calms the world, ends it, and
	// judges what is left.
	Run func(*World) *Result
}

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		{"small", "a few minutes, two keys, and all faults at once", smallSettings, func(w *World) *Result { return smallMail(w.Seed).Run(w) }},
		{"people", "a small world with people who park, release, replay and discard while all is at work", smallSettings,
			func(w *World) *Result { return peopleMail(w.Seed).Run(w) }},
		{"hour", "a busy hour", hourSettings, func(w *World) *Result { return hourMail(w.Seed).Run(w) }},
		{"keys", "a few minutes of calls, each key in several processes", keysSettings, func(w *World) *Result { return keysPlan(w.Seed).Run(w) }},
		{"cas", "the same on an engine that compares and swaps", keysSettings, func(w *World) *Result { return casPlan(w.Seed).Run(w) }},
		{"http", "a few minutes of requests, each from several clients", httpSettings, func(w *World) *Result { return httpPlan(w.Seed).Run(w) }},
	}
}

// KindOf returns the kind of a name.
func KindOf(name string) (Kind, error) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("no kind of world is called %q", name)
}

// some returns p or, in half of the cases, 0, so that many worlds are free of a
// fault that would hide another.
func (d *Draw) some(p float64) float64 {
	if d.Chance(.5) {
		return p
	}
	return 0
}

func smallSettings(seed Seed) Settings {
	d := seed.Draw("settings")
	s := Settings{Seed: seed, Length: 2 * time.Minute, Stall: 15 * time.Second}
	p := []float64{.01, .03, .1}[d.Number(3)]
	s.Chances = Chances{Before: d.some(p), After: d.some(p), Hang: d.some(p / 3), Late: d.some(p / 3), Twice: d.some(p)}
	s.Deaths, s.Stalls = d.Number(3), d.Number(2)
	for _, link := range []Link{StoreName, BrokerName, Downstream, TopicLink("a")} {
		if d.Chance(.3) {
			longest := []time.Duration{5 * time.Second, 20 * time.Second, 3 * time.Minute}[d.Number(3)]
			s.Outages = append(s.Outages, Outage{link, 1 + d.Number(3), longest})
		}
	}
	return s
}

func smallMail(seed Seed) MailPlan {
	d := seed.Draw("plan")
	p := MailPlan{Topics: []string{"a", "b"}[:1+d.Number(2)], Keys: 2, PerKey: 6, Relays: 1 + d.Number(2), Processes: 1 + d.Number(2),
		Unordered: d.Chance(.2), Bursts: d.Chance(.5), Calls: d.Number(3), Attempts: []int{5, 10}[d.Number(2)],
		Flaky: d.some(.2), Slow: d.some(.2), Slowest: []time.Duration{5 * time.Second, 40 * time.Second}[d.Number(2)],
		Copied: d.some(.2), Copies: 2 + d.Number(3), Outage: 15 * time.Minute, Drain: 40 * time.Minute}
	if d.Chance(.1) {
		p.Poison = .1
	}
	p.Relay.Batch = []int{0, 1, 3}[d.Number(3)]
	p.Queues = p.Processes == 1 && d.Chance(.3) // with several processes, a queue keeps no order
	return p
}

func hourSettings(seed Seed) Settings {
	s := Settings{Seed: seed, Length: time.Hour, Deaths: 2, Stalls: 1, Stall: 30 * time.Second}
	s.Chances = Chances{Before: .01, After: .01, Hang: .003, Late: .003, Twice: .01}
	s.Outages = []Outage{{StoreName, 1, time.Minute}, {BrokerName, 2, 5 * time.Minute}, {Downstream, 1, 10 * time.Minute},
		{TopicLink("a"), 2, time.Minute}}
	return s
}

func hourMail(seed Seed) MailPlan {
	d := seed.Draw("plan")
	return MailPlan{Topics: []string{"a", "b"}, Keys: 6, PerKey: 40, Relays: 2, Processes: 2, Bursts: d.Chance(.5), Calls: 10, Attempts: 10,
		Flaky: .05, Poison: .005, Slow: .02, Slowest: 20 * time.Second, Copied: .02, Copies: 3, Outage: 15 * time.Minute, Drain: 40 * time.Minute}
}

// peopleMail is a small world in which people find something to decide.
func peopleMail(seed Seed) MailPlan {
	p := smallMail(seed)
	d := seed.Draw("people")
	p.Operators, p.Poison, p.Flaky, p.Bursts, p.PerKey = 1+d.Number(2), .15, .3, true, 10
	p.Attempts = 5
	return p
}
