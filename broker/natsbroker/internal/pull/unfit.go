package pull

import (
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Unfit says what in the settings of a consumer loses messages, or does not keep to the contract; empty: nothing.
func Unfit(c *jetstream.ConsumerConfig) string {
	switch {
	case c.DeliverSubject != "":
		return "pushes to a subject: take a pull consumer"
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return "has the AckPolicy " + c.AckPolicy.String() + ": set it to explicit"
	case c.MaxDeliver > 0:
		return fmt.Sprintf("drops a message in silence after %d deliveries: set MaxDeliver to -1", c.MaxDeliver)
	case len(c.BackOff) > 0:
		return "has a BackOff, which would change the delays of Return: remove it"
	case c.InactiveThreshold > 0:
		return "is removed when it is idle: set InactiveThreshold to 0, and make it durable"
	case c.HeadersOnly:
		return "delivers headers only: set HeadersOnly to false"
	case len(c.PriorityGroups) > 0:
		return "has priority groups, which this adapter does not know: remove them"
	}
	return ""
}
