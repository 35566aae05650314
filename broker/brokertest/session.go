package brokertest

import (
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
)

func sessionRules() []rule {
	return []rule{
		{"close/comes-again", "unsettled deliveries of a closed session come again, Redelivered", closeComesAgain},
		{"close/not-received", "messages that a closed session had not returned from Receive are delivered", closeNotReceived},
		{"close/twice", "Close may be called twice", closeTwice},
		{"close/settle-after", "settling after Close is an error, and the message comes again", closeSettleAfter},
		{"share/none-lost", "several sessions share the messages, and none is lost", shareNoneLost},
		{"share/out-once", "a message is in flight in one session at a time", shareOutOnce},
		{"share/left", "unsettled deliveries of a closed session come to a session that is already open", shareLeft},
	}
}

func closeComesAgain(b *bench) {
	s := b.open(wide)
	ms := b.send(5)
	b.get(s, ms)
	for range 2 {
		s = b.closed(s)
		b.redelivered(b.get(s, ms))
	}
	s = b.closed(s)
	b.ack(s, b.get(s, ms)...)
	b.wantSettled(s, "all messages were acknowledged in the end")
}

func closeNotReceived(b *bench) {
	ms := b.send(30)
	s := b.open(10)
	first := b.receive(s, 1)
	b.ack(s, first...)
	s = b.closed(s)
	b.consume(s, except(ms, first...))
}

func closeTwice(b *bench) {
	s := b.open(wide)
	ms := b.send(1)
	b.get(s, ms)
	b.close(s)
	b.close(s)
	b.consume(b.open(wide), ms)
	unused := b.open(wide)
	b.close(unused)
	b.close(unused)
}

func closeSettleAfter(b *bench) {
	s := b.open(wide)
	ms := b.send(3)
	ds := b.get(s, ms)
	b.close(s)
	ctx, cancel := b.within()
	defer cancel()
	for doing, err := range map[string]error{
		"Ack":    s.Ack(ctx, ds[:1]),
		"Return": s.Return(ctx, ds[1:2], 0),
		"Reject": s.Reject(ctx, ds[2:], "too late"),
	} {
		if err == nil {
			b.failf("%s of a closed session says that all is well", doing)
		}
	}
	if ds, err := s.Receive(ctx, 1); err == nil {
		b.failf("Receive of a closed session returned %s", ids(ds))
	}
	b.consume(b.open(wide), ms)
}

// shareNoneLost opens sessions while others work. In a log that moves partitions,
// so messages come again. The last session publishes the second half, so that
// all sessions get messages.
func shareNoneLost(b *bench) {
	const sessions, n = 3, 120
	var ms []*broker.Message
	for i := range n {
		ms = append(ms, b.message(string(rune('a'+i%12))))
	}
	b.publish(ms[:n/2]...)
	due := newTally(ms)
	var opened atomic.Int64
	b.together(sessions, func(int) {
		s := b.open(2)
		if opened.Add(1) == sessions {
			b.publish(ms[n/2:]...)
		}
		b.work(s, due)
	})
}

// work receives messages until none is missing.
func (b *bench) work(s broker.Session, due *tally) {
	deadline := time.Now().Add(b.harness.patience())
	for due.missing() > 0 {
		if time.Now().After(deadline) || b.failed() {
			b.failf("%d messages have not come within %v", due.missing(), b.harness.patience())
		}
		ds, err := b.glance(s, b.harness.quiet())
		b.must("Receive", err)
		if id := due.count(ds); id != "" {
			b.failf("%s came twice for the first time: Redelivered was false both times", id)
		}
		if len(ds) > 0 {
			b.tryAck(s, ds)
		}
	}
}

// tryAck acknowledges deliveries. In a log, their partition may have moved.
func (b *bench) tryAck(s broker.Session, ds []broker.Delivery) {
	ctx, cancel := b.within()
	defer cancel()
	if err := s.Ack(ctx, ds); err != nil && !b.Log {
		b.failf("Ack: %v", err)
	}
}

// shareOutOnce does not apply to logs, whose sessions own partitions.
func shareOutOnce(b *bench) {
	b.needs(!b.Log, "sessions of a log have partitions for themselves")
	ms := b.send(12)
	holder := b.open(1)
	held := b.receive(holder, 1)
	others := b.open(4)
	b.consume(others, except(ms, held...))
	b.nothing(others, "the last message is out in another session")
	b.ack(holder, held...)
	b.close(holder) // it has room again, which a broker that pushes messages would use
	b.wantSettled(others, "all messages were acknowledged")
}

func shareLeft(b *bench) {
	first := b.open(wide)
	ms := b.send(6)
	b.get(first, ms)
	second := b.open(wide)
	if !b.Log {
		b.nothing(second, "all messages are out in another session")
	}
	b.close(first)
	again := b.get(second, ms)
	b.redelivered(again)
	b.ack(second, again...)
	b.wantSettled(second, "all messages were acknowledged")
}
