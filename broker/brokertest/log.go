package brokertest

import (
	"slices"

	"github.com/effectively-once/once/broker"
)

func logRules() []rule {
	return []rule{
		{"log/positions", "positions have the same Log, and their offsets increase in each partition", logPositions},
		{"log/same-position", "a message that comes again has the same position", logSamePosition},
		{"log/seek", "after Seek, the first message after its position comes next, and deliveries in flight need not be settled", logSeek},
		{"log/seek-start", "Seek may move before the first message", logSeekStart},
		{"log/seek-forward", "Seek may skip messages that were not received yet", logSeekForward},
	}
}

// ofLog skips the case if the place is not a log.
func (b *bench) ofLog() { b.needs(b.Log, "the place is no log") }

func logPositions(b *bench) {
	b.ofLog()
	ms := append(b.interleaved(5, 10), b.messages(10, "")...)
	b.publish(ms...)
	ds := b.get(b.open(wide), ms)
	last := make(map[string]int64)
	for _, d := range ds {
		p := b.position(d)
		if p.Log != b.position(ds[0]).Log {
			b.failf("one log is named %q and %q", b.position(ds[0]).Log, p.Log)
		}
		if before, ok := last[p.Partition]; ok && p.Offset <= before {
			b.failf("offset %d of the partition %q came behind %d", p.Offset, p.Partition, before)
		}
		last[p.Partition] = p.Offset
	}
}

func (b *bench) position(d broker.Delivery) broker.Position {
	if d.Position == nil || d.Position.Log == "" {
		b.failf("the Position of %s is %v: a log names itself", d.Message.ID, d.Position)
	}
	return *d.Position
}

func logSamePosition(b *bench) {
	b.ofLog()
	s := b.open(wide)
	ms := append(b.interleaved(3, 4), b.messages(3, "")...)
	b.publish(ms...)
	before := b.get(s, ms)
	b.ack(s, before[:2]...)
	s = b.closed(s)
	for _, d := range b.get(s, except(ms, before[:2]...), ms...) {
		was := before[slices.IndexFunc(before, func(e broker.Delivery) bool { return e.Message.ID == d.Message.ID })]
		if b.position(was) != b.position(d) {
			b.failf("%s stood at %+v, and stands at %+v", d.Message.ID, *was.Position, *d.Position)
		}
	}
}

// received opens a session and receives n messages of one partition.
func (b *bench) received(n int) (broker.Session, []*broker.Message, []broker.Delivery) {
	s := b.open(n)
	ms := b.messages(n, "key")
	b.publish(ms...)
	return s, ms, b.get(s, ms)
}

// seek calls Seek and checks which messages come next.
func (b *bench) seek(s broker.Session, p broker.Position, next []*broker.Message) {
	seeker, ok := s.(broker.Seeker)
	b.needs(ok, "the session is no Seeker")
	ctx, cancel := b.within()
	defer cancel()
	b.must("Seek", seeker.Seek(ctx, p))
	for _, m := range next {
		if d := b.receive(s, 1)[0]; d.Message.ID != m.ID {
			b.failf("after Seek %s came, want %s", d.Message.ID, m.ID)
		}
	}
}

func logSeek(b *bench) {
	b.ofLog()
	s, ms, ds := b.received(5) // the window is full
	b.seek(s, b.position(ds[1]), ms[2:])
	b.seek(s, b.position(ds[2]), ms[3:])
}

func logSeekStart(b *bench) {
	b.ofLog()
	s, ms, ds := b.received(3)
	b.ack(s, ds...)
	start := b.position(ds[0])
	start.Offset--
	b.seek(s, start, ms)
}

func logSeekForward(b *bench) {
	b.ofLog()
	s, ms, ds := b.received(3)
	b.ack(s, ds...)
	more := b.messages(4, "key")
	b.publish(more...)
	last := b.position(b.get(s, more[:3])[2])
	b.seek(s, b.position(ds[0]), ms[1:2])
	b.seek(s, last, more[3:])
}
