package world

import (
	"testing"
	"time"
)

// TestAWorldIsBusyAndHasFaults plays a small world, which makes calls and has faults.
func TestAWorldIsBusyAndHasFaults(t *testing.T) {
	k, err := KindOf("small")
	if err != nil {
		t.Fatal(err)
	}
	r := Play(t, k, k.Settings(3))
	if r.Calls < 1000 || len(r.Faults) < 10 || r.Lasted < 2*time.Minute {
		t.Errorf("%d calls, %d faults, %v: a small world has more", r.Calls, len(r.Faults), r.Lasted)
	}
	for _, b := range r.Broken {
		t.Error(b)
	}
}

// TestOnlyAllowedFaultsHappen plays a world whose faults are all suppressed.
func TestOnlyAllowedFaultsHappen(t *testing.T) {
	k, err := KindOf("small")
	if err != nil {
		t.Fatal(err)
	}
	s := k.Settings(3)
	s.Only = make(map[string]bool)
	r := Play(t, k, s)
	if len(r.Faults) > 0 || len(r.Broken) > 0 {
		t.Errorf("without faults, these happened: %v, and these laws broke: %v", r.Faults, r.Broken)
	}
}
