package natsbroker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// arrival is an unsettled delivery of a consumer. The Tag of a delivery points to
// it.
type arrival struct {
	msg         *nats.Msg
	meta        *nats.MsgMetadata
	reply       string    // where it is settled; changes when it is delivered again
	extended    time.Time // when its AckWait last started
	redelivered bool      // it was delivered before
	released    bool      // its settlement failed, so its AckWait is no longer extended
	dead        bool      // its dead letter is stored
}

// seq returns its sequence in the stream.
func (a *arrival) seq() uint64 { return a.meta.Sequence.Stream }

// unsettled holds the unsettled deliveries of a session. It is not safe for
// concurrent use.
type unsettled struct {
	window  int
	all     map[uint64]*arrival // by sequence
	waiting []*arrival          // those that Receive has not returned yet
	highest uint64              // sequence in the stream
	counted uint64              // the last sequence of the consumer, which counts deliveries
}

// newUnsettled returns an empty set of which up to window deliveries may be
// taken.
func newUnsettled(window int) *unsettled {
	return &unsettled{window: window, all: make(map[uint64]*arrival)}
}

// add adds a message. It returns false if the sequence of the consumer did not
// increase. Then the consumer is another one, or the server has forgotten
// deliveries in a crash.
func (s *unsettled) add(m *nats.Msg, meta *nats.MsgMetadata, now time.Time) (rises bool) {
	seq := meta.Sequence.Stream
	rises = meta.Sequence.Consumer > s.counted
	s.counted = meta.Sequence.Consumer
	if a := s.all[seq]; a != nil && !a.released {
		// AckWait has passed, so a message in progress is delivered again.
		// Settling it settles this delivery.
		a.reply, a.extended = m.Reply, now
		return rises
	}
	a := &arrival{msg: m, meta: meta, reply: m.Reply, extended: now, redelivered: meta.NumDelivered > 1 || seq <= s.highest}
	s.highest = max(s.highest, seq)
	s.all[seq] = a
	s.waiting = append(s.waiting, a)
	return rises
}

// room returns how many more deliveries may be taken.
func (s *unsettled) room() int { return s.window - (len(s.all) - len(s.waiting)) }

// waitingCount returns the number of deliveries that were not taken.
func (s *unsettled) waitingCount() int { return len(s.waiting) }

// take returns up to n deliveries that were not taken.
func (s *unsettled) take(n int) []*arrival {
	n = min(n, len(s.waiting))
	taken := slices.Clone(s.waiting[:n])
	s.waiting = slices.Delete(s.waiting, 0, n)
	return taken
}

// has reports whether an arrival is unsettled.
func (s *unsettled) has(a *arrival) bool { return s.all[a.seq()] == a }

// settle removes arrivals.
func (s *unsettled) settle(as []*arrival) {
	for _, a := range as {
		delete(s.all, a.seq())
	}
}

// release marks arrivals whose settlement failed. They can still be settled until
// they are delivered again or removed by dropReleased.
func (s *unsettled) release(as []*arrival) {
	for _, a := range as {
		a.released = true
	}
}

// dropReleased removes released arrivals whose AckWait has passed, because the
// server may deliver them to another session. It reports whether there were any.
func (s *unsettled) dropReleased(now time.Time, ackWait time.Duration) bool {
	before := len(s.all)
	maps.DeleteFunc(s.all, func(_ uint64, a *arrival) bool { return a.released && now.Sub(a.extended) >= ackWait })
	return len(s.all) < before
}

// sorted returns all arrivals in the order of the stream.
func (s *unsettled) sorted() []*arrival {
	return slices.SortedFunc(maps.Values(s.all), func(a, b *arrival) int { return cmp.Compare(a.seq(), b.seq()) })
}

// clear removes and returns all arrivals.
func (s *unsettled) clear() []*arrival {
	all := s.sorted()
	clear(s.all)
	s.waiting = nil
	return all
}
