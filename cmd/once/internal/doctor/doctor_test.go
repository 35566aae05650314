package doctor

import "testing"

func TestWorst(t *testing.T) {
	for _, test := range []struct {
		least, found Severity
		want         bool
	}{
		{Unsafe, Unsafe, true}, {Warning, Unsafe, true}, {Note, Unsafe, true},
		{Unsafe, Warning, false}, {Warning, Warning, true}, {Note, Warning, true},
		{Unsafe, Note, false}, {Warning, Note, false}, {Note, Note, true},
	} {
		if got := (Report{Findings: []Finding{{Severity: test.found}}}).Worst(test.least); got != test.want {
			t.Errorf("a finding that is %s, asked for %s: %v, want %v", test.found, test.least, got, test.want)
		}
	}
}
