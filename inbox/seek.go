package inbox

import (
	"context"
	"sync"

	"github.com/effectively-once/once/broker"
)

// seeks are the partitions that are to be read again from their positions. They are sought between two calls of Receive, so
// that nothing that was received before is taken for what comes after.
type seeks struct {
	seeker broker.Seeker // nil: the source cannot
	mu     sync.Mutex
	asked  map[string]broker.Position // by lane
	times  map[string]int             // that a lane was sought
	hurry  context.CancelFunc         // ends the Receive that is waiting
}

func newSeeks(s broker.Session) *seeks {
	seeker, _ := s.(broker.Seeker)
	return &seeks{seeker: seeker, asked: make(map[string]broker.Position), times: make(map[string]int)}
}

// ask returns false if the source cannot be read again.
func (k *seeks) ask(lane string, p broker.Position) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seeker == nil {
		return false
	}
	k.asked[lane] = p
	if k.hurry != nil {
		k.hurry()
	}
	return true
}

// stale reports whether an item was received before its lane was sought, or is to be.
func (k *seeks) stale(it *item) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.asked[it.lane]
	return ok || it.sought != k.times[it.lane]
}

// date notes in items how often their lanes were sought when they were received.
func (k *seeks) date(items []*item) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, it := range items {
		it.sought = k.times[it.lane]
	}
}

// receive is Receive, which ends early when something is to be sought.
func (k *seeks) receive(ctx context.Context, s broker.Session, max int) ([]broker.Delivery, error) {
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	k.hurry = cancel
	asked := len(k.asked)
	k.mu.Unlock()
	if asked > 0 {
		return nil, nil
	}
	ds, err := s.Receive(short, max)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return ds, err
}

// seek seeks what was asked for, and returns what of the deliveries is not of these partitions.
func (k *seeks) seek(ctx context.Context, ds []broker.Delivery, drop func(lane string)) ([]broker.Delivery, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for lane, p := range k.asked {
		others := ds[:0]
		for _, d := range ds {
			if laneOf(d.Position) != lane {
				others = append(others, d)
			}
		}
		ds = others
		drop(lane)
		if err := k.seeker.Seek(ctx, p); err != nil {
			return ds, err
		}
		delete(k.asked, lane)
		k.times[lane]++
	}
	return ds, nil
}
