package world

import "testing"

func TestEveryLawIsSaid(t *testing.T) {
	for _, law := range Laws() {
		if Says(law) == "" {
			t.Errorf("%s has no words", law)
		}
	}
	if len(says) != len(Laws()) {
		t.Errorf("%d laws have words, and there are %d", len(says), len(Laws()))
	}
}
