package world

import (
	"runtime"
	"testing"

	"github.com/effectively-once/once/internal/sim"
)

// TestASeedOfKeysHasOneHistory plays worlds twice, on one processor. As for
// messages, a few histories may differ.
func TestASeedOfKeysHasOneHistory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, name := range []string{"keys", "cas", "http"} {
		sameTwice(t, name, 15)
	}
}

func sameTwice(t *testing.T, kind string, seeds sim.Seed) {
	t.Helper()
	k, err := KindOf(kind)
	if err != nil {
		t.Fatal(err)
	}
	differ := sim.Seed(0)
	for seed := sim.Seed(1); seed <= seeds; seed++ {
		s := k.Settings(seed)
		s.Loud = true
		a, b := Play(t, k, s).History, Play(t, k, s).History
		if len(a) < 50 {
			t.Errorf("%s, seed %d: only %d lines", kind, seed, len(a))
		}
		if at, same := sameHistory(a, b); !same {
			differ++
			t.Logf("%s, seed %d: line %d of %d and %d is\n%v\n%v", kind, seed, at+1, len(a), len(b), lineAt(a, at), lineAt(b, at))
		}
	}
	if differ > seeds/5 {
		t.Errorf("%s: %d of %d histories differ", kind, differ, seeds)
	}
}
