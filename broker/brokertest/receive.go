package brokertest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
)

func receiveRules() []rule {
	return []rule{
		{"source/name", "a source has a Name, which is not empty and does not change", sourceName},
		{"source/location", "a Located source returns the same facts each time, and each has a name", sourceLocation},
		{"source/horizon", "a Horizon returns how long a message may come", sourceHorizon},
		{"source/lag", "a Lagger counts unsettled messages, also while nothing is consumed, and returns 0 when all are settled", sourceLag},
		{"source/lag-from", "a LogLagger counts the messages after positions, all of a partition without one, and none from a position of another log or after the end", sourceLagFrom},
		{"receive/waits", "Receive waits for messages", receiveWaits},
		{"receive/at-once", "Receive returns the available messages without waiting for more", receiveAtOnce},
		{"receive/most", "Receive returns no more than its limit, and no other message is lost", receiveMost},
		{"receive/context", "Receive ends with its context, and the session can be used again", receiveContext},
		{"receive/given-up", "no message is lost between calls of Receive that end with their contexts", receiveGivenUp},
		{"window/kept", "no more deliveries than the window are in flight", windowKept},
		{"window/frees", "Ack, Return and Reject make room in the window", windowFrees},
	}
}

func sourceName(b *bench) {
	name := b.Source.Name()
	s := b.open(wide)
	b.consume(s, b.send(1))
	if after := b.Source.Name(); name == "" || after != name {
		b.failf("the Name was %q and is %q now", name, after)
	}
}

func sourceLocation(b *bench) {
	_, ok := b.Source.(broker.Located)
	b.needs(ok, "the source is not Located")
	before := b.location()
	if _, ok := before[""]; ok {
		b.failf("Location has a fact without a name: %q", before)
	}
	b.consume(b.open(wide), b.send(1))
	b.stillAt(before)
}

// location returns the Location of the source, or nil if it is not Located.
func (b *bench) location() (facts map[string]string) {
	l, ok := b.Source.(broker.Located)
	if !ok {
		return nil
	}
	b.until("Location is answered", func() (answered bool) {
		ctx, cancel := b.within()
		defer cancel()
		var err error
		facts, err = l.Location(ctx)
		return err == nil
	})
	return facts
}

func (b *bench) stillAt(before map[string]string) {
	if after := b.location(); !maps.Equal(before, after) {
		b.failf("Location was %q and is %q", before, after)
	}
}

func sourceHorizon(b *bench) {
	h, ok := b.Source.(broker.Horizon)
	b.needs(ok, "the source is no Horizon")
	ctx, cancel := b.within()
	defer cancel()
	d, err := h.RedeliveryHorizon(ctx)
	b.must("RedeliveryHorizon", err)
	if d < 0 {
		b.failf("RedeliveryHorizon: %v: want 0 for ever, or how long", d)
	}
}

func sourceLag(b *bench) {
	l, ok := b.Source.(broker.Lagger)
	b.needs(ok, "the source is no Lagger")
	behind := func() int64 {
		ctx, cancel := b.within()
		defer cancel()
		lag, err := l.Lag(ctx)
		b.must("Lag", err)
		if lag.Messages < 0 || lag.Oldest < 0 || lag.Messages == 0 && lag.Oldest > 0 {
			b.failf("Lag: %+v", lag)
		}
		return lag.Messages
	}
	ms := b.send(5)
	b.until("Lag counts 5 messages that nobody has received", func() bool { return behind() >= 5 })
	s := b.open(wide)
	b.consume(s, ms)
	b.until("Lag counts nothing when all are settled", func() bool { return behind() == 0 })
}

func sourceLagFrom(b *bench) {
	l, ok := b.Source.(broker.LogLagger)
	b.needs(ok, "the source is no LogLagger")
	ask := func(at map[string]broker.Position) (broker.Lag, error) {
		ctx, cancel := b.within()
		defer cancel()
		return l.LagFrom(ctx, at)
	}
	after := func(at map[string]broker.Position) int64 {
		lag, err := ask(at)
		b.must("LagFrom", err)
		if lag.Messages < 0 || lag.Oldest < 0 || lag.Messages == 0 && lag.Oldest > 0 {
			b.failf("LagFrom: %+v", lag)
		}
		return lag.Messages
	}
	if n := after(nil); n != 0 {
		b.failf("LagFrom counts %d messages of an empty log", n)
	}
	ms := b.interleaved(3, 4)
	b.publish(ms...)
	b.until("LagFrom counts all messages if there are no positions", func() bool { return after(nil) == int64(len(ms)) })
	ds := b.get(b.open(wide), ms)
	at, of := make(map[string]broker.Position), make(map[string]int64)
	for i, d := range ds {
		p := b.position(d)
		at[p.Partition] = p
		of[p.Partition]++
		if n, left := after(at), int64(len(ds)-1-i); n != left {
			b.failf("LagFrom counts %d messages, and %d come after the positions", n, left)
		}
	}
	p := b.position(ds[0])
	for _, c := range []struct {
		name   string
		offset int64
		log    string
		fails  bool
	}{
		{"before the first message", -1, p.Log, false},
		{"of another log", p.Offset, p.Log + "-earlier", true},
		{"after the end", at[p.Partition].Offset + 1000, p.Log, true},
	} {
		last := at[p.Partition]
		at[p.Partition] = broker.Position{Log: c.log, Partition: p.Partition, Offset: c.offset}
		switch lag, err := ask(at); {
		case c.fails && err == nil:
			b.failf("from a position %s, LagFrom counts %d messages", c.name, lag.Messages)
		case !c.fails && (err != nil || lag.Messages != of[p.Partition]):
			b.failf("from a position %s, LagFrom counts %d messages of %d, with the error %v", c.name, lag.Messages, of[p.Partition], err)
		}
		at[p.Partition] = last
	}
	at["another source's"] = broker.Position{Log: "another source", Partition: "another source's", Offset: 7}
	b.publish(b.messages(1, "key")...)
	b.until("LagFrom counts a message after the positions", func() bool { return after(at) == 1 })
}

func receiveWaits(b *bench) {
	s := b.open(wide)
	type answer struct {
		ds  []broker.Delivery
		err error
	}
	answers := make(chan answer, 1)
	ctx, cancel := b.within()
	defer cancel()
	go func() {
		ds, err := s.Receive(ctx, wide)
		answers <- answer{ds, err}
	}()
	quiet := time.NewTimer(b.harness.quiet())
	defer quiet.Stop()
	select {
	case a := <-answers:
		b.failf("nothing was published, and Receive returned %d deliveries and the error %v", len(a.ds), a.err)
	case <-quiet.C:
	}
	m := b.send(1)
	a := <-answers // Receive ends with its context at the latest
	b.must("Receive, for which a message was published", a.err)
	if len(a.ds) != 1 || a.ds[0].Message.ID != m[0].ID {
		b.failf("%s was published, and Receive returned %s", m[0].ID, ids(a.ds))
	}
}

// receiveAtOnce receives a message before it measures, because the first one may
// take longer.
func receiveAtOnce(b *bench) {
	s := b.open(wide)
	b.consume(s, b.send(1))
	ms := b.send(3)
	start := time.Now()
	for got := 0; got < len(ms); {
		got += len(b.receive(s, wide))
	}
	if took, limit := time.Since(start), b.harness.patience()/10; took > limit {
		b.failf("Receive took %v for what was there, as if it waited for more", took)
	}
}

func receiveMost(b *bench) {
	s := b.open(wide)
	ms := b.send(7)
	var got []broker.Delivery
	for len(got) < len(ms) {
		got = append(got, b.receive(s, min(2, len(ms)-len(got)))...)
	}
	for _, d := range got {
		if !has(ms, d.Message.ID) {
			b.failf("%s came, which was never published", d.Message.ID)
		}
	}
	if len(got) != len(ms) || len(distinct(got)) != len(ms) {
		b.failf("%d messages were published, and %d came: %s", len(ms), len(distinct(got)), ids(got))
	}
}

func distinct(ds []broker.Delivery) map[string]bool {
	seen := make(map[string]bool)
	for _, d := range ds {
		seen[d.Message.ID] = true
	}
	return seen
}

func receiveContext(b *bench) {
	s := b.open(wide)
	ended, cancel := context.WithCancel(b)
	cancel()
	b.givesUp(s, ended, context.Canceled)
	for range 3 {
		soon, cancel := context.WithTimeout(b, b.harness.quiet()/3)
		b.givesUp(s, soon, context.DeadlineExceeded)
		cancel()
	}
	b.ack(s, b.get(s, b.send(2))...)
}

// givesUp checks that Receive ends with its context and returns its error.
func (b *bench) givesUp(s broker.Session, ctx context.Context, want error) {
	done := make(chan error, 1)
	go func() {
		_, err := s.Receive(ctx, wide)
		done <- err
	}()
	late, cancel := b.within()
	defer cancel()
	select {
	case err := <-done:
		b.wantErr("Receive, whose context ended", err, want)
	case <-late.Done():
		b.failf("Receive waits on, although its context has ended")
	}
}

func receiveGivenUp(b *bench) {
	const n = 100
	s := b.open(wide)
	ms := b.messages(n, "")
	published := make(chan struct{})
	go func() {
		defer close(published)
		pace := time.NewTicker(2 * time.Millisecond) // so that messages arrive while contexts end
		defer pace.Stop()
		for i := range n / 2 {
			<-pace.C
			b.publish(ms[2*i : 2*i+2]...)
		}
	}()
	due := idsOf(ms)
	deadline := time.Now().Add(b.harness.patience())
	for i := 0; len(due) > 0; i++ {
		if time.Now().After(deadline) || b.failed() {
			b.failf("%d of %d messages have not come within %v", len(due), n, b.harness.patience())
		}
		ds, err := b.glance(s, time.Duration(i%10)*time.Millisecond)
		if err != nil {
			b.failf("Receive: %v", err)
		}
		for _, d := range ds {
			delete(due, d.Message.ID)
		}
		if len(ds) > 0 {
			b.ack(s, ds...)
		}
	}
	<-published
}

// glance receives for a short time. It is no error if no message comes.
func (b *bench) glance(s broker.Session, d time.Duration) ([]broker.Delivery, error) {
	ctx, cancel := context.WithTimeout(b, d)
	defer cancel()
	ds, err := s.Receive(ctx, 3)
	if len(ds) == 0 && err != nil && ctx.Err() != nil {
		return nil, nil
	}
	return ds, err
}

func windowKept(b *bench) {
	const window = 3
	ms := b.send(3 * window)
	s := b.open(window)
	var out []broker.Delivery
	for len(out) < window {
		out = append(out, b.receive(s, wide)...)
	}
	if len(out) > window {
		b.failf("the window is %d, and %d deliveries are out", window, len(out))
	}
	b.nothing(s, "the window is full")
	b.ack(s, out[0])
	if ds := b.receive(s, wide); len(ds) != 1 {
		b.failf("one of %d was settled, and %d more came", window, len(ds))
	}
	b.nothing(s, "the window is full again")
	b.consume(b.closed(s), except(ms, out[0]))
}

// closed closes a session and opens another.
func (b *bench) closed(s broker.Session) broker.Session {
	b.close(s)
	return b.open(wide)
}

// except returns the messages without those of some deliveries.
func except(ms []*broker.Message, gone ...broker.Delivery) []*broker.Message {
	without := distinct(gone)
	return slices.DeleteFunc(slices.Clone(ms), func(m *broker.Message) bool { return without[m.ID] })
}

func windowFrees(b *bench) {
	s := b.open(1)
	ctx, cancel := b.within()
	defer cancel()
	ms := b.send(4)
	first := b.receive(s, 1)
	b.ack(s, first...)
	second := b.receive(s, 1)
	b.must("Reject", s.Reject(ctx, second, "to make room"))
	b.must("Return", s.Return(ctx, b.receive(s, 1), 0))
	b.consume(s, except(ms, first[0], second[0]))
}
