//go:build linux

package models

import (
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

// TestStepsOfLanes compares lanes.steps, which histories are checked with, with the
// steps that Spin finds: all that are there, and no others. More faults add none.
func TestStepsOfLanes(t *testing.T) {
	testenv.Spin(t)
	compareSteps(t, run{model: "lanes", defines: "STEPS FAULTS=1 PRESENCE", prints: true}, stepsOfLanes, func(line string) (string, error) {
		s, err := parseLaneStep(line)
		if s.verb == changesNothing {
			return "", err
		}
		return s.String(), err
	})
}
