package world

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// Kind is a kind of world.
type Kind struct {
	Name  string
	About string

	// Settings draws what a world of this kind may do.
	Settings func(sim.Seed) sim.Settings

	// Run runs it: it starts processes, lets time pass, calms the world, ends it, and
	// judges what is left.
	Run func(*sim.World) *sim.Result
}

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		{"small", "a few minutes, two keys, and all faults at once", smallSettings, func(w *sim.World) *sim.Result { return smallMail(w.Seed).Run(w) }},
		{"people", "a small world with people who park, release, replay and discard while all is at work", smallSettings,
			func(w *sim.World) *sim.Result { return peopleMail(w.Seed).Run(w) }},
		{"relays", "a small world of relays that lose their lanes to each other, and of people who park and release", relaysSettings,
			func(w *sim.World) *sim.Result { return relaysMail(w.Seed).Run(w) }},
		{"decide", "a small world of people who decide about the same messages at the same moments", decideSettings,
			func(w *sim.World) *sim.Result { return decideMail(w.Seed).Run(w) }},
		{"shapes", "a small world whose consumers handle several messages at once, keep positions, or charge and then write", shapesSettings,
			func(w *sim.World) *sim.Result { return shapesMail(w.Seed).Run(w) }},
		{"shelf", "a small world in which much waits on the shelf, or is held in the outbox", shelfSettings,
			func(w *sim.World) *sim.Result { return shelfMail(w.Seed).Run(w) }},
		{"carried", "the same without a broker: the store carries the messages", carriedSettings,
			func(w *sim.World) *sim.Result { return carriedMail(w.Seed).Run(w) }},
		{"fleet", "a small world with more consumers, some of which put messages, are retired, or are away, and with failovers", fleetSettings,
			func(w *sim.World) *sim.Result { return fleetMail(w.Seed).Run(w) }},
		{"deaths", "a small world of messages that end their processes, of short outages, or of copies that wait: what counts as an attempt, and what does not", deathsSettings,
			func(w *sim.World) *sim.Result { return deathsMail(w.Seed).Run(w) }},
		{"hour", "a busy hour", hourSettings, func(w *sim.World) *sim.Result { return hourMail(w.Seed).Run(w) }},
		{"keys", "a few minutes of calls, each key in several processes", keysSlowSettings, func(w *sim.World) *sim.Result { return memoryPlan(w.Seed).Run(w) }},
		{"cas", "the same on an engine that compares and swaps", casSettings, func(w *sim.World) *sim.Result { return casPlan(w.Seed).Run(w) }},
		{"http", "a few minutes of requests, each from several clients", httpSettings, func(w *sim.World) *sim.Result { return httpPlan(w.Seed).Run(w) }},
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

func smallSettings(seed sim.Seed) sim.Settings {
	d := seed.Draw("settings")
	s := sim.Settings{Seed: seed, Length: 2 * time.Minute, Stall: 15 * time.Second}
	p := []float64{.01, .03, .1}[d.Number(3)]
	s.Chances = sim.Chances{Before: d.Some(p), After: d.Some(p), Hang: d.Some(p / 3), Late: d.Some(p / 3), Twice: d.Some(p)}
	s.Deaths, s.Stalls = d.Number(3), d.Number(2)
	for _, link := range []sim.Link{sim.StoreName, sim.BrokerName, Downstream, sim.TopicLink("a")} {
		if d.Chance(.3) {
			longest := []time.Duration{5 * time.Second, 20 * time.Second, 3 * time.Minute}[d.Number(3)]
			s.Outages = append(s.Outages, sim.Outage{Link: link, Times: 1 + d.Number(3), Longest: longest})
		}
	}
	return s
}

// longestOutages is longer than all outages of a small world are together, so
// that only poison waits for it.
const longestOutages = 6 * time.Minute

func smallMail(seed sim.Seed) MailPlan {
	d := seed.Draw("plan")
	p := MailPlan{Topics: []string{"a", "b"}[:1+d.Number(2)], Keys: 2, PerKey: 6, Relays: 1 + d.Number(2), Processes: 1 + d.Number(2),
		Unordered: d.Chance(.2), Bursts: d.Chance(.5), Calls: d.Number(3), Attempts: []int{2, 3, 5, 10}[d.Number(4)],
		Flaky: d.Some(.2), Slow: d.Some(.2), Slowest: []time.Duration{5 * time.Second, 40 * time.Second}[d.Number(2)],
		Copied: d.Some(.2), Copies: 2 + d.Number(3), Outage: longestOutages, Drain: 20 * time.Minute}
	if d.Chance(.1) {
		p.Poison = .1
	}
	if d.Chance(.1) {
		p.Deadly = .1
	}
	p.Refused = d.Some(.2)
	p.Relay.Batch = []int{0, 1, 3}[d.Number(3)]
	p.Pause = []time.Duration{0, 20 * time.Second, 20 * time.Second}[d.Number(3)]
	if p.Plain = d.Chance(.6); p.Plain {
		p.Relay.Poll = time.Second
	}
	if d.Chance(.15) { // copies that wait for slow handlers
		p.Attempts, p.Copied, p.Copies, p.Slow, p.Slowest = 2+d.Number(2), .4, 4, .4, 40*time.Second
	}
	p.Queues = p.Processes == 1 && d.Chance(.3) // with several processes, a queue keeps no order
	return p
}

func hourSettings(seed sim.Seed) sim.Settings {
	s := sim.Settings{Seed: seed, Length: time.Hour, Deaths: 2, Stalls: 1, Stall: 30 * time.Second}
	s.Chances = sim.Chances{Before: .01, After: .01, Hang: .003, Late: .003, Twice: .01}
	s.Outages = []sim.Outage{
		{Link: sim.StoreName, Times: 1, Longest: time.Minute},
		{Link: sim.BrokerName, Times: 2, Longest: 5 * time.Minute},
		{Link: Downstream, Times: 1, Longest: 10 * time.Minute},
		{Link: sim.TopicLink("a"), Times: 2, Longest: time.Minute},
	}
	return s
}

func hourMail(seed sim.Seed) MailPlan {
	d := seed.Draw("plan")
	return MailPlan{Topics: []string{"a", "b"}, Keys: 6, PerKey: 40, Relays: 2, Processes: 2, Bursts: d.Chance(.5), Calls: 10, Attempts: 10,
		Flaky: .05, Poison: .005, Slow: .02, Slowest: 20 * time.Second, Copied: .02, Copies: 3, Outage: 15 * time.Minute, Drain: 40 * time.Minute}
}

// peopleMail is a small world in which people find something to decide.
func peopleMail(seed sim.Seed) MailPlan {
	p := smallMail(seed)
	d := seed.Draw("people")
	p.Operators, p.Poison, p.Flaky, p.Bursts, p.PerKey = 1+d.Number(2), .15, .3, true, 10
	p.Attempts = 5
	return p
}
