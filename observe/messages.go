package observe

import "github.com/effectively-once/once/internal/sight"

// What becomes of a message at a consumer, in inbox.Ended.Outcome. A message that is [Parked] waits for a person.
const (
	Handled   = sight.Handled   // by its handler, and that is committed
	Prevented = sight.Prevented // its handler returned inbox.Duplicate
	Duplicate = sight.Duplicate // it was dealt with before, and not handled
	Retried   = sight.Retried   // nothing was decided: it is tried again, here, from the shelf or when it comes again
	Shelved   = sight.Shelved   // it was put aside, for another attempt or behind another message
)

// Outcomes are all of them.
func Outcomes() []string {
	return []string{Handled, Prevented, Duplicate, Retried, Shelved, Parked}
}
