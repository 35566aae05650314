//go:build go1.26

package chance

import (
	"slices"
	"testing"
	"testing/cryptotest"
)

func TestASeedGivesTheSameNumbersWhateverRanBefore(t *testing.T) {
	var runs [2][]int
	for i := range runs {
		Perm(i + 3) // what ran before
		t.Run("seeded", func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, 7)
			for range 100 {
				runs[i] = append(runs[i], N(1<<40))
			}
			runs[i] = append(runs[i], Perm(20)...)
		})
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Errorf("seed 7 gave\n%v, then\n%v", runs[0], runs[1])
	}
}
