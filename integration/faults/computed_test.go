package faults

import (
	"errors"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
)

// TestComputedStatus has a row with the status 5, which is computed and never
// written.
func TestComputedStatus(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := with(t, e)
		finished(t, d, "unit")
		d.MustExec(t, "UPDATE once_record SET status = 5 WHERE id = 'unit'")
		for how, call := range calls(d, damaged, "unit", never(t, "status 5")) {
			if _, err := call(t.Context()); !errors.Is(err, once.ErrCorrupt) {
				t.Errorf("%s returned %v, want ErrCorrupt", how, err)
			}
		}
	})
}
