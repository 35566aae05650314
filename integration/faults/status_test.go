package faults

import (
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
)

// TestStatusDamagedIntoAnother damages a status into another valid one. The row
// still has what only a unit that is done has: an outcome and its retention.
func TestStatusDamagedIntoAnother(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := with(t, e)
		for _, status := range []once.Status{once.Absent, once.Running, once.Unknown, once.Parked} {
			id := status.String()
			finished(t, d, id)
			d.MustExec(t, fmt.Sprintf("UPDATE once_record SET status = %d WHERE id = '%s'", status, id))
			for how, call := range calls(d, damaged, id, never(t, "done, damaged into "+id)) {
				if answer, err := call(t.Context()); err == nil {
					t.Errorf("done, damaged into %v: %s returned %q", status, how, answer)
				} else {
					t.Logf("done, damaged into %v: %s returned %v", status, how, err)
				}
			}
		}
	})
}
