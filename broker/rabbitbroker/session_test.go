package rabbitbroker

import (
	"errors"
	"slices"
	"testing"

	"github.com/effectively-once/once/broker"
)

// A message whose ack was not sent after its dead letter was stored gets no
// second one, and one that is settled gets none.
func TestADeadLetterIsSentOnce(t *testing.T) {
	n := new(session)
	settled, letter, message := &arrival{session: n}, &arrival{session: n, dead: true}, &arrival{session: n}
	if !n.begin(settled) || n.begin(settled) {
		t.Error("a delivery is not settled once")
	}
	dead, fresh, err := n.divide([]*arrival{settled, letter, message})
	if !slices.Equal(dead, []*arrival{letter}) || !slices.Equal(fresh, []*arrival{message}) || !errors.Is(err, broker.ErrSettled) {
		t.Error(dead, fresh, err)
	}
}
