package world

import (
	"runtime"
	"testing"
)

// TestKeysKeepTheLaws plays small worlds of keys on both kinds of stores.
func TestKeysKeepTheLaws(t *testing.T) {
	playAll(t, "keys", 150)
	playAll(t, "cas", 150)
}

// TestRequestsKeepTheLaws plays small worlds of requests.
func TestRequestsKeepTheLaws(t *testing.T) { playAll(t, "http", 100) }

// playAll plays the worlds of the first seeds, and tells which laws they broke.
func playAll(t *testing.T, kind string, seeds Seed) {
	t.Helper()
	k, err := KindOf(kind)
	if err != nil {
		t.Fatal(err)
	}
	for seed := Seed(1); seed <= seeds; seed++ {
		r := Play(t, k, k.Settings(seed))
		for _, b := range r.Broken {
			t.Errorf("%s, seed %d: %s\n%s", kind, seed, b, Print(r.Story(b)))
			break
		}
	}
}

// TestASeedOfKeysHasOneHistory plays worlds twice, on one processor.
func TestASeedOfKeysHasOneHistory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, name := range []string{"keys", "cas", "http"} {
		sameTwice(t, name, 15)
	}
}

func sameTwice(t *testing.T, kind string, seeds Seed) {
	t.Helper()
	k, err := KindOf(kind)
	if err != nil {
		t.Fatal(err)
	}
	for seed := Seed(1); seed <= seeds; seed++ {
		s := k.Settings(seed)
		s.Loud = true
		a, b := Play(t, k, s).History, Play(t, k, s).History
		for i := range min(len(a), len(b)) {
			if a[i].String() != b[i].String() {
				t.Errorf("%s, seed %d: line %d of %d is\n%s, and then\n%s", kind, seed, i+1, len(a), a[i], b[i])
				break
			}
		}
		if len(a) != len(b) || len(a) < 50 {
			t.Errorf("%s, seed %d: %d lines, and then %d", kind, seed, len(a), len(b))
		}
	}
}
