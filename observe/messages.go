package observe

// What becomes of a message at a consumer, in inbox.HandlingResult.Outcome. A message that is [Parked] waits for a person.
const (
	Handled   = "handled"   // by its handler, and that is committed
	Prevented = "prevented" // its handler returned inbox.Duplicate
	Duplicate = "duplicate" // it was dealt with before, and not handled
	Retried   = "retried"   // nothing was decided: it is tried again, here, from the shelf or when it comes again
	Shelved   = "shelved"   // it was put aside, for another attempt or behind another message
)

// Outcomes are all of them.
func Outcomes() []string {
	return []string{Handled, Prevented, Duplicate, Retried, Shelved, Parked}
}
