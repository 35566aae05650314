package observe

// Outcomes of messages at a consumer, in inbox.HandlingResult.Outcome. A
// message that is [Parked] waits for a person.
const (
	Handled   = "handled"   // the handler has handled it, and that is committed
	Prevented = "prevented" // the handler returned inbox.Duplicate
	Duplicate = "duplicate" // it was handled before, so the handler was not called
	Retried   = "retried"   // it will be tried again: here, from the shelf, or when it is redelivered
	Shelved   = "shelved"   // it was put on the shelf, for another attempt or after an earlier message
)

// Outcomes returns all outcomes of messages.
func Outcomes() []string {
	return []string{Handled, Prevented, Duplicate, Retried, Shelved, Parked}
}
