package brokertest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

func settleRules() []rule {
	return []rule{
		{"ack/for-good", "acknowledged messages do not come again, in any session", ackForGood},
		{"ack/any-order", "deliveries may be settled in any order, one by one and several at once", ackAnyOrder},
		{"ack/only-named", "Ack settles its deliveries, and no earlier or later ones", ackOnlyNamed},
		{"ack/concurrent", "deliveries may be settled concurrently with each other and with Receive", ackConcurrent},
		{"ack/prefix", "if all earlier messages are acknowledged too, acknowledged messages do not come again, and the others do", ackPrefix},
		{"return/again", "returned messages come again, Redelivered, and their attempts do not decrease", returnAgain},
		{"return/elsewhere", "returned messages come again in the next session", returnElsewhere},
		{"return/others-pass", "other messages are delivered before a delayed one", returnOthersPass},
		{"return/delay", "a Delayer delays returned messages as long as it is told, and no longer", returnDelay},
		{"reject/for-good", "rejected messages do not come again, in any session", rejectForGood},
		{"reject/dead-letters", "rejected messages become dead letters, with the reason, their ordering key and their own headers", rejectDeadLetters},
		{"settle/twice", "settling a delivery twice is an ErrSettled, and changes nothing for its message and for others", settleTwice},
	}
}

func ackForGood(b *bench) {
	s := b.open(wide)
	b.ack(s, b.get(s, b.send(5))...)
	b.wantSettled(s, "all messages were acknowledged")
}

func ackAnyOrder(b *bench) {
	s := b.open(wide)
	ms := b.messages(6, b.sharedKey())
	b.publish(ms...)
	ds := b.get(s, ms)
	b.ack(s, ds[4])
	b.ack(s, ds[5], ds[1])
	b.ack(s, ds[0])
	b.ack(s, ds[3], ds[2])
	b.wantSettled(s, "all messages were acknowledged")
}

func ackConcurrent(b *bench) {
	const n = 60
	s := b.open(wide)
	ms := b.send(n)
	settled := make(chan struct{}, n)
	due, out := idsOf(ms), 0
	for len(due) > 0 {
		for _, d := range b.receive(s, 5) {
			delete(due, d.Message.ID)
			out++
			go func() {
				b.ack(s, d)
				settled <- struct{}{}
			}()
		}
	}
	for range out {
		select {
		case <-settled:
		case <-b.Done():
			b.failf("Ack: %v", b.Err())
		}
	}
	b.wantSettled(s, "all messages were acknowledged")
}

// ackOnlyNamed allows acknowledged messages to come again in a log, which keeps
// only the offset below which everything is settled, and with KeyRepeats.
func ackOnlyNamed(b *bench) {
	s := b.open(wide)
	ms := b.messages(5, b.sharedKey())
	b.publish(ms...)
	ds := b.get(s, ms)
	b.ack(s, ds[1], ds[3])
	var mayComeToo []*broker.Message
	if b.Log || b.KeyRepeats {
		mayComeToo = ms
	}
	s = b.closed(s)
	again := b.get(s, except(ms, ds[1], ds[3]), mayComeToo...)
	b.redelivered(again)
}

func ackPrefix(b *bench) {
	s := b.open(wide)
	ms := b.messages(6, b.sharedKey())
	b.publish(ms...)
	ds := b.get(s, ms)
	b.ack(s, ds[1], ds[0], ds[2])
	s = b.closed(s)
	again := b.get(s, except(ms, ds[:3]...))
	b.redelivered(again)
	b.ack(s, again...)
	b.wantSettled(s, "the first messages were acknowledged")
}

// redelivered fails unless all deliveries are Redelivered.
func (b *bench) redelivered(ds []broker.Delivery) {
	for _, d := range ds {
		if !d.Redelivered {
			b.failf("%s was delivered before, and comes again without being Redelivered: false is a promise", d.Message.ID)
		}
	}
}

func returnAgain(b *bench) {
	s := b.open(wide)
	ms := b.send(3)
	for range 3 {
		before := b.get(s, ms)
		b.giveBack(s, 0, before...)
		again := b.get(s, ms)
		b.redelivered(again)
		for _, d := range again {
			if was := attemptOf(before, d.Message.ID); d.Message.Attempt < was {
				b.failf("attempt %d of %s came after attempt %d", d.Message.Attempt, d.Message.ID, was)
			}
		}
		b.giveBack(s, 0, again...)
	}
	b.ack(s, b.get(s, ms)...)
	b.wantSettled(s, "all messages were returned, and then acknowledged")
}

func (b *bench) giveBack(s broker.Session, after time.Duration, ds ...broker.Delivery) {
	ctx, cancel := b.within()
	defer cancel()
	b.must("Return", s.Return(ctx, ds, after))
}

func attemptOf(ds []broker.Delivery, id string) int {
	for _, d := range ds {
		if d.Message.ID == id {
			return d.Message.Attempt
		}
	}
	return 0
}

func returnElsewhere(b *bench) {
	s := b.open(wide)
	ms := b.send(2)
	b.giveBack(s, 0, b.get(s, ms)...)
	s = b.closed(s)
	again := b.get(s, ms)
	b.redelivered(again)
	b.ack(s, again...)
	b.wantSettled(s, "all messages were returned, and then acknowledged")
}

func returnOthersPass(b *bench) {
	s := b.open(wide)
	first := b.send(1)
	b.giveBack(s, b.delay(s, 2*b.harness.patience()), b.get(s, first)...)
	second := b.send(3)
	b.ack(s, b.get(s, second, first...)...)
}

// delay returns want, limited to the LongestDelay of the session.
func (b *bench) delay(s broker.Session, want time.Duration) time.Duration {
	d, ok := s.(broker.Delayer)
	if !ok {
		return 0
	}
	longest := d.LongestDelay()
	if longest <= 0 {
		b.failf("the LongestDelay of a Delayer is %v", longest)
	}
	return min(longest, want)
}

func returnDelay(b *bench) {
	s := b.open(wide)
	_, ok := s.(broker.Delayer)
	b.needs(ok, "the session is no Delayer")
	ms := b.send(2)
	ds := b.get(s, ms)
	delay, start := b.delay(s, 2*b.harness.quiet()), time.Now()
	b.giveBack(s, delay, ds...)
	again := b.get(s, ms[:1], ms[1])
	if passed := time.Since(start); passed < delay {
		b.failf("returned for %v, and there again after %v", delay, passed)
	}
	b.redelivered(again)
}

func rejectForGood(b *bench) {
	s := b.open(wide)
	ms := b.send(4)
	ds := b.get(s, ms)
	ctx, cancel := b.within()
	defer cancel()
	b.must("Reject", s.Reject(ctx, ds[1:3], "no use"))
	b.ack(s, ds[0])
	b.ack(s, ds[3])
	b.wantSettled(s, "two messages were rejected, and the others acknowledged")
}

func rejectDeadLetters(b *bench) {
	s := b.open(wide)
	keeper, ok := s.(broker.DeadLetterer)
	if b.DeadLetters == nil {
		if ok && keeper.KeepsRejected() {
			b.failf("the session says that it keeps what is rejected, and the place has no DeadLetters")
		}
		b.needs(false, "the broker keeps no dead letters")
	}
	if !ok || !keeper.KeepsRejected() {
		b.failf("rejected messages are kept, and the session is no DeadLetterer that says so")
	}
	const reason = "no such customer: 7"
	m := b.message("key")
	m.Header = libraryHeaders(earlier) // as a dead letter that was sent back
	m.Header["a"] = "b"
	b.publish(m)
	ctx, cancel := b.within()
	defer cancel()
	b.must("Reject", s.Reject(ctx, b.get(s, []*broker.Message{m}), reason))
	b.isDeadLetter(b.deadLetter(), m, reason)
}

// deadLetter waits for the only dead letter.
func (b *bench) deadLetter() *broker.Message {
	var dead []*broker.Message
	b.until("a rejected message is among the dead letters", func() bool {
		b.test(func(tb testing.TB) { dead = b.DeadLetters(tb) })
		return len(dead) > 0
	})
	if len(dead) != 1 || dead[0] == nil {
		b.failf("one message was rejected, and there are %d dead letters", len(dead))
	}
	return dead[0]
}

// earlier begins the headers of a message that was a dead letter before.
const earlier = "earlier"

// isDeadLetter checks that a dead letter has what is needed to handle the message
// again. The broker may add headers, and replace those that only dead letters have.
func (b *bench) isDeadLetter(dead, m *broker.Message, reason string) {
	if dead.ID != m.ID || string(dead.Body) != string(m.Body) || dead.OrderingKey != m.OrderingKey ||
		dead.Header["a"] != m.Header["a"] {
		b.failf("the dead letter is %+v, and the message was %+v", dead, m)
	}
	for _, name := range []string{broker.KeyHeader, broker.SeqHeader, broker.SealedHeader, broker.OriginalIDHeader, broker.OriginalOrderingKeyHeader} {
		if dead.Header[name] != m.Header[name] {
			b.failf("the header %s of a dead letter is %q, and that of the message was %q", name, dead.Header[name], m.Header[name])
		}
	}
	if b.NoReason {
		return
	}
	if strings.HasPrefix(dead.Header[broker.ReasonHeader], earlier) {
		b.failf("the dead letter has the reason of an earlier one: %q", dead.Header)
	}
	for _, value := range dead.Header {
		if strings.Contains(value, reason) {
			return
		}
	}
	b.failf("no header of the dead letter has the reason %q: %q", reason, dead.Header)
}

// settleTwice settles each delivery again, alone and together with one that is
// in flight. The deliveries of other messages remain what they were.
func settleTwice(b *bench) {
	s := b.open(wide)
	ways := b.waysToSettle(s)
	ms := b.send(2*len(ways) + 1)
	ds := b.get(s, ms)
	other, ds := ds[len(ds)-1], ds[:len(ds)-1]
	for i, w := range ways {
		b.must(w.name, w.settle(ds[2*i]))
		b.refusesSettled(ways, ds[2*i])
		b.wantErr(w.name+" of a settled delivery and another one", w.settle(ds[2*i:2*i+2]...), broker.ErrSettled)
		b.refusesSettled(ways, ds[2*i+1])
	}
	returned := except(ms, append(slices.Clone(ds[:len(ds)-2]), other)...)
	left := append(b.get(s, returned), other)
	b.refusesSettled(ways, ds...) // the messages of two of them are in flight again
	if !b.Log {
		s = b.closed(s)
		left = b.get(s, append(returned, other.Message))
	}
	b.ack(s, left...)
	b.wantSettled(s, "all messages were settled")
}

// wayToSettle is a method of a session that settles deliveries.
type wayToSettle struct {
	name   string
	settle func(...broker.Delivery) error
}

// waysToSettle returns the methods of a session. Return is the last.
func (b *bench) waysToSettle(s broker.Session) []wayToSettle {
	way := func(name string, settle func(context.Context, []broker.Delivery) error) wayToSettle {
		return wayToSettle{name, func(ds ...broker.Delivery) error {
			ctx, cancel := b.within()
			defer cancel()
			return settle(ctx, ds)
		}}
	}
	return []wayToSettle{
		way("Ack", s.Ack),
		way("Reject", func(ctx context.Context, ds []broker.Delivery) error { return s.Reject(ctx, ds, "no use") }),
		way("Return", func(ctx context.Context, ds []broker.Delivery) error { return s.Return(ctx, ds, 0) }),
	}
}

// refusesSettled fails unless settling each of the deliveries is an ErrSettled.
func (b *bench) refusesSettled(ways []wayToSettle, ds ...broker.Delivery) {
	for _, d := range ds {
		for _, w := range ways {
			b.wantErr(w.name+" of "+d.Message.ID+", which was settled", w.settle(d), broker.ErrSettled)
		}
	}
}
