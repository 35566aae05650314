//go:build linux

package publish

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// verdict lists what is wrong with the published messages.
type verdict struct {
	lost, uncommitted, unordered, doubled, renumbered []string
	prints, made                                      int
}

func (v verdict) String() string {
	return fmt.Sprintf("%d messages committed, %d prints; %d lost, %d never committed, %d out of order, "+
		"%d doubled, %d renumbered",
		v.made, v.prints, len(v.lost), len(v.uncommitted), len(v.unordered), len(v.doubled), len(v.renumbered))
}

// check reports violations. Doubled messages are violations unless doubles is
// set.
func (v verdict) check(t testing.TB, doubles bool) {
	t.Helper()
	for what, all := range map[string][]string{"lost": v.lost, "printed and never committed": v.uncommitted,
		"out of order": v.unordered, "with another once-seq": v.renumbered} {
		if len(all) > 0 {
			t.Errorf("%d messages are %s: %s", len(all), what, few(all))
		}
	}
	if !doubles && len(v.doubled) > 0 {
		t.Errorf("%d messages were published more than once: %s", len(v.doubled), few(v.doubled))
	}
}

func few(all []string) string { return strings.Join(all[:min(len(all), 10)], ", ") }

// judge compares committed and published messages. The business numbers of each
// key are 1, 2, 3 and so on.
func judge(made []order, prints []print) verdict {
	v := verdict{prints: len(prints), made: len(made)}
	orders := make(map[string]order)
	for _, o := range made {
		orders[o.id] = o
	}
	first := make(map[string]print)
	last := make(map[string]int64)
	for _, p := range prints {
		before, again := first[p.ID]
		switch o, known := orders[p.ID]; {
		case !known || o.key != p.Key || o.seq != p.Seq:
			v.uncommitted = append(v.uncommitted, p.ID)
		case again && before.Place != p.Place:
			v.renumbered = append(v.renumbered, fmt.Sprintf("%s: %s by %s and %s by %s", p.ID, before.Place, before.relay,
				p.Place, p.relay))
		}
		if again {
			v.doubled = append(v.doubled, p.ID)
			continue
		}
		first[p.ID] = p
		if p.Key != "" && p.Seq != last[p.Key]+1 {
			v.unordered = append(v.unordered, fmt.Sprintf("%s: number %d of %s after %d", p.ID, p.Seq, p.Key, last[p.Key]))
		}
		last[p.Key] = p.Seq
	}
	for id := range orders {
		if _, printed := first[id]; !printed {
			v.lost = append(v.lost, id)
		}
	}
	slices.Sort(v.lost)
	return v
}

// TestVerdictCanBeGuilty checks that each violation is found.
func TestVerdictCanBeGuilty(t *testing.T) {
	made := []order{{"a", "k", 1}, {"b", "k", 2}, {"c", "", 0}}
	a, b, c := print{sheet{"a", "k", 1, "7"}, "r1"}, print{sheet{"b", "k", 2, "8"}, "r1"},
		print{sheet{"c", "", 0, "9"}, "r2"}
	moved := a
	moved.Place = "70"
	for _, x := range []struct {
		name   string
		prints []print
		found  func(verdict) []string
	}{
		{"lost", []print{a, b}, func(v verdict) []string { return v.lost }},
		{"uncommitted", []print{a, b, c, {sheet{"d", "", 0, ""}, "r1"}}, func(v verdict) []string { return v.uncommitted }},
		{"unordered", []print{b, a, c}, func(v verdict) []string { return v.unordered }},
		{"doubled", []print{a, b, c, a}, func(v verdict) []string { return v.doubled }},
		{"renumbered", []print{a, b, c, moved}, func(v verdict) []string { return v.renumbered }},
	} {
		if v := judge(made, x.prints); len(x.found(v)) == 0 {
			t.Errorf("%s: it is not found: %v", x.name, v)
		}
	}
	v := judge(made, []print{a, c, b})
	if len(v.lost)+len(v.uncommitted)+len(v.unordered)+len(v.doubled)+len(v.renumbered) > 0 {
		t.Errorf("something is found where all is well: %v", v)
	}
}
