package world

import (
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/sim"
)

// lists says which seeds every run of the suite plays, and for how long. Together
// they take a minute, with -short five seconds. A soak plays new seeds, and gives
// each kind the same share of its time.
var lists = []struct {
	kind  string
	seeds int
	time  time.Duration
}{
	{"small", 1000, 6 * time.Second},
	{"shapes", 1000, 4 * time.Second},
	{"shelf", 1000, 5 * time.Second},
	{"carried", 1000, 4 * time.Second},
	{"deaths", 1000, 4 * time.Second},
	{"fleet", 1000, 4 * time.Second},
	{"people", 20, 4 * time.Second},
	{"relays", 1000, 4 * time.Second},
	{"decide", 1000, 4 * time.Second},
	{"hour", 2, 6 * time.Second},
	{"keys", 1000, 5 * time.Second},
	{"cas", 1000, 5 * time.Second},
	{"http", 1000, 5 * time.Second},
}

const (
	timeOfAll   = time.Minute
	shortTime   = timeOfAll / 12
	alwaysPlays = 3 // seeds of a list, also on a slow machine
)

func TestWorldsKeepTheLaws(t *testing.T) {
	soak := proof.Soaking(t)
	for _, list := range lists {
		t.Run(list.kind, func(t *testing.T) {
			k, first, seeds, limit, least := kindOf(t, list.kind), sim.Seed(1), list.seeds, list.time, alwaysPlays
			switch {
			case soak > 0:
				first, seeds, limit, least = sim.Seed(proof.Seed(t)), 1<<30, share(soak, limit), 1
			case testing.Short() && list.kind == "hour":
				t.Skip("it takes seconds")
			case testing.Short():
				limit = share(shortTime, limit)
			}
			began, n := time.Now(), 0
			for ; n < seeds && (n < least || time.Since(began) < limit); n++ {
				keepsLaws(t, k, first+sim.Seed(n))
			}
			t.Logf("%d worlds, from seed %d", n, first)
		})
	}
}

// share returns what a kind gets of a time, if it gets part of a minute.
func share(all, part time.Duration) time.Duration {
	return time.Duration(float64(all) * float64(part) / float64(timeOfAll))
}

func TestTheListsTakeAMinute(t *testing.T) {
	all := time.Duration(0)
	for _, list := range lists {
		all += list.time
	}
	if all != timeOfAll {
		t.Errorf("the lists take %v, want %v", all, timeOfAll)
	}
	if len(lists) != len(Kinds()) {
		t.Errorf("%d kinds have a list, and there are %d", len(lists), len(Kinds()))
	}
}
