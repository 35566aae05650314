package brokertest

import (
	"sync"

	"github.com/effectively-once/once/broker"
)

// tally is which messages are still to come, for several who receive.
type tally struct {
	mu    sync.Mutex
	due   map[string]bool
	first map[string]bool // came for the first time, as their deliveries say
}

func newTally(ms []*broker.Message) *tally {
	return &tally{due: idsOf(ms), first: make(map[string]bool)}
}

// count crosses off what came. It returns the ID of a message that came for the first time twice.
func (t *tally) count(ds []broker.Delivery) (twice string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range ds {
		delete(t.due, d.Message.ID)
		if t.first[d.Message.ID] && !d.Redelivered {
			twice = d.Message.ID
		}
		t.first[d.Message.ID] = t.first[d.Message.ID] || !d.Redelivered
	}
	return twice
}

func (t *tally) missing() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due)
}
