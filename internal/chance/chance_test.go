package chance

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestEveryNumberHasTheSameChance draws so many numbers that a wrong bound, or a
// number that never comes, fails in every run, and a right one in none of 10^9.
func TestEveryNumberHasTheSameChance(t *testing.T) {
	const draws = 60_000
	for _, n := range []int{1, 2, 3, 6, 10} {
		var seen [10]int
		for range draws {
			seen[N(n)]++
		}
		want := draws / n
		far := int(7 * math.Sqrt(float64(want))) // deviations
		for i, got := range seen {
			switch {
			case i >= n && got > 0:
				t.Errorf("N(%d) returned %d", n, i)
			case i < n && (got < want-far || got > want+far):
				t.Errorf("N(%d) returned %d %d times of %d, want about %d", n, i, got, draws, want)
			}
		}
	}
}

// TestLowNumbersAreNotPreferred takes a span that fits 2.7 times into what is
// drawn: the rest of a division alone would be in its first two thirds three
// times of four.
func TestLowNumbersAreNotPreferred(t *testing.T) {
	const span, draws = 3 << 61, 6000
	low := 0
	for range draws {
		switch d := N(time.Duration(span)); {
		case d < 0 || d >= span:
			t.Fatalf("N returned %d", d)
		case d < span/3*2:
			low++
		}
	}
	if low < 3740 || low > 4260 {
		t.Errorf("%d numbers of %d are in the first two thirds, want about 4000", low, draws)
	}
}

func TestPermHasEachNumberOnceInAnyOrder(t *testing.T) {
	orders := make(map[[3]int]int)
	for range 6000 {
		p := Perm(3)
		orders[[3]int(p)]++
		if slices.Sort(p); !slices.Equal(p, []int{0, 1, 2}) {
			t.Fatalf("Perm(3) has %v", p)
		}
	}
	for order, n := range orders {
		if n < 780 || n > 1220 {
			t.Errorf("%v came %d times of 6000, want about 1000", order, n)
		}
	}
	if len(orders) != 6 {
		t.Errorf("%d orders of 6 were seen", len(orders))
	}
	if p := Perm(0); len(p) != 0 {
		t.Errorf("Perm(0) = %v", p)
	}
}

func TestNOfNothingPanics(t *testing.T) {
	for _, n := range []int{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("N(%d) returned", n)
				}
			}()
			N(n)
		}()
	}
}

func BenchmarkN(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		N(time.Second)
	}
}

func BenchmarkPerm(b *testing.B) {
	for range b.N {
		Perm(64)
	}
}
