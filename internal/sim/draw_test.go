package sim

import (
	"testing"
	"time"
)

func TestDrawsDependOnWhatTheyAreAbout(t *testing.T) {
	seen := make(map[uint64]string)
	for seed := range Seed(100) {
		for _, parts := range [][]string{{"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}} {
			d := seed.Draw(parts...)
			for n := range 3 {
				at := d.Nth(n)
				v := at.next()
				if before, twice := seen[v]; twice {
					t.Fatalf("seed %d, %q #%d draws what %s has drawn", seed, parts, n, before)
				}
				seen[v] = "another"
			}
		}
	}
	if one, other := Seed(7).Draw("x"), Seed(7).Draw("x"); one != other {
		t.Error("the same decision is drawn twice, and differs")
	}
}

func TestChancesAreWhatTheySay(t *testing.T) {
	hits := 0
	d := Seed(1).Draw("coin")
	for range 10_000 {
		if d.Chance(.1) {
			hits++
		}
		if at := d.Between(time.Second, time.Minute); at < time.Second || at >= time.Minute {
			t.Fatal(at)
		}
		if n := d.Number(3); n < 0 || n > 2 {
			t.Fatal(n)
		}
	}
	if hits < 900 || hits > 1100 {
		t.Errorf("%d of 10,000, want 1,000", hits)
	}
}
