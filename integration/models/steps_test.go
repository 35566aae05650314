//go:build linux

package models

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
)

var write = flag.Bool("write", false, "write the files of steps")

// stepRuns make all steps of the model key together: those with a learned clock,
// and with W=0 those of a store whose clock decides. More faults add none.
var stepRuns = []string{
	"FAULTS=2 KIND=ASK",
	"FAULTS=2 KIND=PARK",
	"FAULTS=2 KIND=KEYED NOBODY",
	"FAULTS=1 KIND=KEYED",
}

// TestStepsOfTheModel compares key.steps, which histories are checked with, with the
// steps that Spin finds: all that are there, and no others.
func TestStepsOfTheModel(t *testing.T) {
	testenv.Spin(t)
	makes := func(clock string) map[string]bool {
		all := make(map[string]bool)
		for _, defines := range stepRuns {
			got := run{model: "key", defines: "STEPS " + clock + " " + defines, prints: true}.search(t)
			if got.broken != "" {
				t.Fatalf("%s: %s", defines, got.broken)
			}
			for _, line := range got.steps {
				s, err := parseStep(line)
				proof.Must(t, err)
				all[s.String()] = true
			}
		}
		return all
	}
	exact, byLearning := makes("W=0"), makes("W=1")
	var lines []string
	for step := range byLearning {
		if !exact[step] {
			step += learned
		}
		lines = append(lines, step)
	}
	for step := range exact {
		if !byLearning[step] {
			t.Errorf("without a learned clock the model makes a step more: %s", step)
		}
	}
	slices.Sort(lines)
	is := strings.Join(lines, "\n") + "\n"
	if *write {
		proof.Must(t, os.WriteFile("key.steps", []byte(is), 0o644))
	} else if is != stepsOfKey {
		t.Errorf("the model makes other steps than key.steps has (go test -run %s -write writes it):\n%s", t.Name(), is)
	}
}

// stepsIn returns the steps that a search has printed, each once.
func stepsIn(out string) []string {
	all := make(map[string]bool)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "step ") {
			all[line] = true
		}
	}
	return slices.Collect(maps.Keys(all))
}
