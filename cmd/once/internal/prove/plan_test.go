package prove

import (
	"reflect"
	"testing"
)

// A plan has every fault that was asked for, and a seed gives the same plan again.
func TestAPlanHasItsFaults(t *testing.T) {
	o := Options{Requests: 50, Kills: 7, Cuts: 5, Swallowed: 6, Lost: 9, Seed: 3, Servers: make([]Server, 2)}
	steps := plan(o, 0)
	if !reflect.DeepEqual(steps, plan(o, 0)) {
		t.Error("the same seed gives another plan")
	}
	if reflect.DeepEqual(steps, plan(o, 1)) {
		t.Error("two rounds are alike")
	}
	kills, cuts, swallowed, lost, doubled := 0, 0, 0, 0, 0
	servers := map[int]bool{}
	for _, s := range steps {
		kills += len(s.kills)
		for _, b := range s.breaks {
			servers[b.server] = true
			if b.swallow {
				swallowed++
			} else {
				cuts++
			}
		}
		if s.lose != arrives {
			lost++
		}
		if s.double {
			doubled++
		}
	}
	if len(steps) != 50 || kills != 7 || cuts != 5 || swallowed != 6 || lost != 9 || doubled == 0 || len(servers) != 2 {
		t.Errorf("%d steps: %d kills, %d cuts, %d swallowed, %d lost, %d doubled, servers %v", len(steps), kills, cuts, swallowed, lost, doubled, servers)
	}
	o.Servers = nil
	for _, s := range plan(o, 0) {
		if len(s.breaks) > 0 {
			t.Error("connections are broken, and there is no server")
		}
	}
}
