package inbox

import (
	"context"
	"maps"
	"sync"

	"github.com/effectively-once/once/broker"
)

// rereads has the partitions to read again from their positions. The source is
// asked for them between two calls of Receive, so that no message received
// before is taken for one received after.
type rereads struct {
	seeker  broker.Seeker // nil: the source cannot read again
	mu      sync.Mutex
	asked   map[string]broker.Position // by lane
	seeks   map[string]int             // how often each lane was read again
	receive context.CancelFunc         // ends the Receive that is waiting; nil: there is none
}

func newRereads(s broker.Session) *rereads {
	seeker, _ := s.(broker.Seeker)
	return &rereads{seeker: seeker, asked: make(map[string]broker.Position), seeks: make(map[string]int)}
}

// ask asks for a lane to be read again. It returns false if the source cannot.
func (r *rereads) ask(lane string, p broker.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seeker == nil {
		return false
	}
	r.asked[lane] = p
	if r.receive != nil {
		r.receive()
	}
	return true
}

// isStale reports whether an item was received before its lane was read again,
// or is to be.
func (r *rereads) isStale(it *item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.asked[it.lane]
	return ok || it.seeks != r.seeks[it.lane]
}

// stamp notes in items how often their lanes were read again before they were
// received.
func (r *rereads) stamp(items []*item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		it.seeks = r.seeks[it.lane]
	}
}

// next receives deliveries, without those of lanes that are now read again. It
// calls drop for each of these lanes. It returns early when a lane is to be read
// again.
func (r *rereads) next(ctx context.Context, s broker.Session, limit int, drop func(lane string)) ([]broker.Delivery, error) {
	ds, err := r.receiveUntilAsked(ctx, s, limit)
	if err != nil {
		return ds, err
	}
	return r.seek(ctx, ds, drop)
}

func (r *rereads) receiveUntilAsked(ctx context.Context, s broker.Session, limit int) ([]broker.Delivery, error) {
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.receive = cancel
	asked := len(r.asked)
	r.mu.Unlock()
	if asked > 0 {
		return nil, nil
	}
	ds, err := s.Receive(short, limit)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return ds, err
}

// seek reads lanes again that were asked for. It does not hold the lock meanwhile:
// workers ask while the source takes its time.
func (r *rereads) seek(ctx context.Context, ds []broker.Delivery, drop func(lane string)) ([]broker.Delivery, error) {
	for lane, p := range r.toSeek() {
		others := ds[:0]
		for _, d := range ds {
			if laneOf(d.Position) != lane {
				others = append(others, d)
			}
		}
		ds = others
		drop(lane)
		if err := r.seeker.Seek(ctx, p); err != nil {
			return ds, err
		}
		r.sought(lane, p)
	}
	return ds, nil
}

func (r *rereads) toSeek() map[string]broker.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.asked)
}

// sought notes that a lane is read again from p. If another place was asked for
// meanwhile, that is still to be done.
func (r *rereads) sought(lane string, p broker.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked[lane] == p {
		delete(r.asked, lane)
	}
	r.seeks[lane]++
}
