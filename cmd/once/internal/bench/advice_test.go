package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestAdviceFollowsTheMeasurements(t *testing.T) {
	costs := func(half, fresh, speculative, do, async float64) Report {
		return Report{Isolation: "read committed", Sides: []Side{{Name: Bare, Workers: 8, Cost: 1}, {Name: Half, Workers: 4, Cost: half},
			{Name: New, Cost: fresh}, {Name: Speculative, Cost: speculative}, {Name: Do, Cost: do}, {Name: Async, Cost: async}}}
	}
	serializable := costs(1.3, 1.3, 1.3, 2, 2)
	serializable.Isolation = "serializable"
	elsewhere := Report{Sides: []Side{{Name: Bare, Workers: 8, Cost: 1}, {Name: Half, Workers: 4, Cost: 1.3}, {Name: New, Cost: 2}, {Name: Do, Cost: 3}}}
	for name, test := range map[string]struct {
		report Report
		want   []string
		says   string
	}{
		"nothing":        {report: costs(1.3, 1.3, 1.25, 2, 1.9)},
		"other engine":   {report: elsewhere},
		"speculation":    {costs(1.3, 1.5, 1.2, 2, 2), []string{"speculative"}, "20 % cheaper"},
		"async commit":   {costs(1.3, 1.3, 1.3, 2, 1), []string{"async-commit"}, "50 % cheaper"},
		"smaller pool":   {costs(1.05, 1.3, 1.3, 2, 2), []string{"pool-smaller"}, "4 workers do nearly as much as 8"},
		"larger pool":    {costs(1.9, 1.3, 1.3, 2, 2), []string{"pool-larger"}, "8 workers do 1.9 times as much as 4: try --workers 16"},
		"isolation":      {serializable, []string{"isolation"}, "default_transaction_isolation is serializable"},
		"several things": {costs(1.05, 1.5, 1.2, 2, 1), []string{"speculative", "async-commit", "pool-smaller"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, a := range test.report.Advice() {
				got = append(got, a.Name)
				if !strings.Contains(a.Text, test.says) {
					t.Errorf("%s says %q, want %q in it", a.Name, a.Text, test.says)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
