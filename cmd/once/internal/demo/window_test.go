package demo

import (
	"strings"
	"testing"
)

// Each window is either met at a point of the shop, or made where orders are placed.
func TestEveryWindowIsMade(t *testing.T) {
	made := map[string]bool{doubleClick: true, lostReply: true, outage: true}
	for _, w := range Windows {
		if meets[w.Name] == "" && !made[w.Name] {
			t.Errorf("%s happens nowhere", w.Name)
		}
		for _, text := range []string{w.What, w.ByHand, w.Once} {
			if text == "" || strings.HasSuffix(text, ".") || !strings.Contains(w.Explain(), text) {
				t.Errorf("%s: %q", w.Name, text)
			}
		}
	}
	for window := range meets {
		if _, err := Find(window); err != nil {
			t.Error(err)
		}
	}
}

func TestFind(t *testing.T) {
	if w, err := Find(outage); err != nil || w.Name != outage {
		t.Errorf("found %+v, %v", w, err)
	}
	for _, name := range []string{"", everything, "Outage"} {
		if _, err := Find(name); err == nil || !strings.Contains(err.Error(), "choose one of double-click, ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
