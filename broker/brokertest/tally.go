package brokertest

import (
	"sync"

	"github.com/effectively-once/once/broker"
)

// tally records which messages have not come yet. Several sessions may use it.
type tally struct {
	mu    sync.Mutex
	due   map[string]bool
	first map[string]bool // messages with a delivery that was not Redelivered
}

func newTally(ms []*broker.Message) *tally {
	return &tally{due: idsOf(ms), first: make(map[string]bool)}
}

// count records deliveries. It returns the ID of a message with two deliveries
// that were not Redelivered.
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
