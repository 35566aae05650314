package seedbugs

// WorldBug is a bug that a simulated world must find: see package world.
type WorldBug struct {
	Bug
	Kind string // the kind of world that finds it soonest
}

// inWorld names the bugs that worlds must find, by kind of world.
var inWorld = []struct {
	kind string
	bugs []string
}{
	{"small", []string{
		"an-outage-uses-up-attempts",
		"copies-that-wait-are-attempts",
		"a-suspect-is-overtaken-in-the-table",
		"consumer-acks-what-failed",
		"consumer-parks-nothing",
		"consumer-forgets-the-shelf-in-a-park",
		"held-messages-pass",
		"lanes-do-not-wait",
		"an-outage-counts-on-the-shelf",
		"a-poisonous-message-is-taken-for-an-outage",
		"shelf-lease-is-not-renewed",
		"relay-blames-messages-for-the-broker",
		"relay-keeps-its-lanes-at-the-end",
		"a-key-is-often-in-a-batch",
		"messages-pass-a-failed-one-of-their-key",
		"new-messages-pass-those-that-are-held",
		"held-messages-are-not-learned-of",
		"an-outage-blames-a-message",
		"a-chunk-survives-the-loss-of-its-lane",
		"own-claim-not-recognised",
		"unused-claim-not-given-back",
		"settlement-not-repeated",
		"unknown-run-again-without-asking",
		"not-done-ignored",
		"lookup-believed-before-the-settle-time",
		"commit-error-believed",
		"rows-of-a-rejection-kept",
		"steps-are-nobodys",
		"deadly-messages-are-not-counted",
	}},
	{"people", []string{
		"relays-poll-for-what-people-park",
		"consumer-does-not-park-the-key",
		"discard-overrules-others",
		"replay-without-a-word",
	}},
}

// OfTheWorld returns the bugs that worlds must find.
func OfTheWorld() (all []WorldBug) {
	byName := make(map[string]Bug)
	for _, b := range All() {
		byName[b.Name] = b
	}
	for _, group := range inWorld {
		for _, name := range group.bugs {
			all = append(all, WorldBug{byName[name], group.kind})
		}
	}
	return all
}
