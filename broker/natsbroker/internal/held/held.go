// Package held keeps what a session was given and has not settled.
package held

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Arrival is a delivery that is not settled. Its identity is what settles it.
type Arrival struct {
	Msg    *nats.Msg
	Meta   *nats.MsgMetadata
	Reply  string    // where it is settled; another one when it has come again meanwhile
	Signed time.Time // when the server last heard that it is worked on
	Again  bool      // it is not the first delivery
}

// Seq is its place in the stream.
func (a *Arrival) Seq() uint64 { return a.Meta.Sequence.Stream }

// Set is what is not settled. It is not for concurrent use.
type Set struct {
	window  int
	all     map[uint64]*Arrival // by sequence
	waiting []*Arrival          // those of them that nobody has taken
	highest uint64              // sequence of the stream
	counted uint64              // deliveries of the consumer, which only rise
}

// New returns a set of which at most so many may be taken at once as the window says.
func New(window int) *Set { return &Set{window: window, all: make(map[uint64]*Arrival)} }

// Add keeps a message. It is false if the count of deliveries went back: then it is that of another consumer, or of a
// server that has forgotten deliveries in a crash.
func (s *Set) Add(m *nats.Msg, meta *nats.MsgMetadata, now time.Time) (rises bool) {
	seq := meta.Sequence.Stream
	rises = meta.Sequence.Consumer > s.counted
	s.counted = meta.Sequence.Consumer
	if a := s.all[seq]; a != nil {
		// The signals were too late, and here it is again while it is being worked on. Settling that settles this.
		a.Reply, a.Signed = m.Reply, now
		return rises
	}
	a := &Arrival{Msg: m, Meta: meta, Reply: m.Reply, Signed: now, Again: meta.NumDelivered > 1 || seq <= s.highest}
	s.highest = max(s.highest, seq)
	s.all[seq] = a
	s.waiting = append(s.waiting, a)
	return rises
}

// Room is how many more may be taken.
func (s *Set) Room() int { return s.window - (len(s.all) - len(s.waiting)) }

// Waiting is how many nobody has taken.
func (s *Set) Waiting() int { return len(s.waiting) }

// Take returns at most n that nobody has taken.
func (s *Set) Take(n int) []*Arrival {
	n = min(n, len(s.waiting))
	taken := slices.Clone(s.waiting[:n])
	s.waiting = slices.Delete(s.waiting, 0, n)
	return taken
}

// Has reports whether it is not settled.
func (s *Set) Has(a *Arrival) bool { return s.all[a.Seq()] == a }

// Settle takes arrivals out.
func (s *Set) Settle(as []*Arrival) {
	for _, a := range as {
		delete(s.all, a.Seq())
	}
}

// All are what is not settled, in the order of the stream.
func (s *Set) All() []*Arrival {
	return slices.SortedFunc(maps.Values(s.all), func(a, b *Arrival) int { return cmp.Compare(a.Seq(), b.Seq()) })
}

// Clear takes out all, and returns it.
func (s *Set) Clear() []*Arrival {
	all := s.All()
	clear(s.all)
	s.waiting = nil
	return all
}
