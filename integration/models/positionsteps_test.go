//go:build linux

package models

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
)

// TestStepsOfPositions compares positions.steps, which histories are checked with,
// with the steps that Spin finds: all that are there, and no others. More faults add
// none.
func TestStepsOfPositions(t *testing.T) {
	testenv.Spin(t)
	compareSteps(t, run{model: "positions", defines: "STEPS FAULTS=2 SETS_BACK", prints: true}, stepsOfPositions, func(line string) (string, error) {
		s, err := parsePositionStep(line)
		return s.String(), err
	})
}

// compareSteps compares the steps that a model makes with those of its file.
func compareSteps(t *testing.T, r run, have string, text func(line string) (string, error)) {
	t.Helper()
	got := r.search(t)
	if got.broken != "" {
		t.Fatalf("%s: %s", r, got.broken)
	}
	var lines []string
	for _, printed := range got.steps {
		line, err := text(printed)
		proof.Must(t, err)
		if line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	is := strings.Join(slices.Compact(lines), "\n") + "\n"
	if *write {
		proof.Must(t, os.WriteFile(r.model+".steps", []byte(is), 0o644))
	} else if is != have {
		t.Errorf("the model makes other steps than %s.steps has (go test -run %s -write writes it):\n%s", r.model, t.Name(), is)
	}
}
