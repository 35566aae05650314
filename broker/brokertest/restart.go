package brokertest

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
)

func restartRules() []rule {
	return []rule{
		{"restart/publish", "messages that were confirmed before, during and after a restart of the broker arrive, and a Located source returns the same facts", restartPublish},
		{"restart/order", "messages without errors keep their order across a restart", restartOrder},
		{"restart/unsettled", "unsettled deliveries of a broken session come again, Redelivered", restartUnsettled},
		{"restart/receive", "a waiting Receive returns an error or a message when its session breaks", restartReceive},
		{"restart/settle", "settling a delivery of a broken session returns an error, or settles it", restartSettle},
	}
}

// restartable skips the case if the harness has no Restart.
func (b *bench) restartable() { b.needs(b.harness.Restart != nil, "the harness has no Restart") }

// persist publishes a message until it is confirmed. Each attempt has a limit,
// as in a relay, because a broker that restarts may never confirm one.
func (b *bench) persist(m *broker.Message) {
	b.repeat("a message is confirmed", func() error {
		ctx, cancel := context.WithTimeout(b, b.harness.patience()/8)
		defer cancel()
		return allConfirmed([]*broker.Message{m}, b.Publisher.Publish(ctx, []*broker.Message{m}))
	})
}

// acrossRestart publishes messages one by one before, during and after a restart.
// It returns those that were confirmed.
func (b *bench) acrossRestart(orderingKey string) (confirmed []*broker.Message) {
	const some = 20
	var count atomic.Int64
	enough, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(time.Millisecond) // limits the number of messages during a long restart
		defer pace.Stop()
		for {
			m := b.message(orderingKey)
			b.persist(m)
			confirmed = append(confirmed, m)
			count.Add(1)
			select {
			case <-enough:
				return
			case <-pace.C:
			}
		}
	}()
	b.until("messages are confirmed", func() bool { return count.Load() >= some || b.failed() })
	b.restart()
	before := count.Load()
	b.until("messages are confirmed after the restart", func() bool { return count.Load() >= before+some || b.failed() })
	close(enough)
	<-done
	if b.failed() {
		runtime.Goexit()
	}
	return confirmed
}

func restartPublish(b *bench) {
	b.restartable()
	before := b.location()
	ms := b.acrossRestart("")
	b.drain(b.reopen(wide), ms)
	b.stillAt(before)
}

// drain receives messages as a consumer does, until all have come. It opens
// another session when one breaks. It returns the first deliveries, in order.
func (b *bench) drain(s broker.Session, ms []*broker.Message) (got []broker.Delivery) {
	due := idsOf(ms)
	deadline := time.Now().Add(b.harness.patience())
	for len(due) > 0 {
		if time.Now().After(deadline) {
			b.failf("%d of %d messages have not come within %v", len(due), len(ms), b.harness.patience())
		}
		ds, err := b.glance(s, b.harness.quiet())
		if err != nil {
			b.abandon(s)
			s = b.reopen(wide)
			continue
		}
		for _, d := range ds {
			if due[d.Message.ID] {
				got = append(got, d)
			}
			delete(due, d.Message.ID)
		}
		ctx, cancel := b.within()
		_ = s.Ack(ctx, ds) // if the session is broken, Receive returns an error
		cancel()
	}
	return got
}

// abandon closes a broken session and ignores its error.
func (b *bench) abandon(s broker.Session) {
	ctx, cancel := b.within()
	defer cancel()
	_ = s.Close(ctx) // the next session shows whether a message was lost
}

// restartOrder may see duplicates, because a message whose confirmation was lost
// is published again.
func restartOrder(b *bench) {
	b.ordered()
	b.restartable()
	ms := b.acrossRestart("key")
	b.inOrder(ms, b.drain(b.reopen(wide), ms))
}

func restartUnsettled(b *bench) {
	b.restartable()
	s := b.open(wide)
	ms := b.send(10)
	ds := b.get(s, ms)
	b.ack(s, ds[:3]...)
	b.restart()
	b.abandon(s)
	again := b.get(b.reopen(wide), except(ms, ds[:3]...), ms...)
	b.redelivered(again)
}

func restartReceive(b *bench) {
	b.restartable()
	s := b.open(wide)
	b.consume(s, b.send(1))
	type answer struct {
		ds  []broker.Delivery
		err error
	}
	answers := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(b, 2*b.harness.patience())
	defer cancel()
	go func() {
		ds, err := s.Receive(ctx, wide)
		answers <- answer{ds, err}
	}()
	b.restart()
	m := b.message("")
	b.persist(m)
	if a := <-answers; ctx.Err() != nil || a.err == nil && len(a.ds) == 0 {
		b.failf("Receive, while the session broke, returned nothing: %v", a.err)
	}
	b.abandon(s)
	b.drain(b.reopen(wide), []*broker.Message{m})
}

func restartSettle(b *bench) {
	b.restartable()
	s := b.open(wide)
	ms := b.send(1)
	ds := b.get(s, ms)
	b.restart()
	if !b.broken(s) {
		b.needs(false, "the session has survived the restart")
	}
	ctx, cancel := b.within()
	defer cancel()
	err := s.Ack(ctx, ds)
	b.abandon(s)
	s = b.reopen(wide)
	if err == nil {
		b.nothing(s, "the message was acknowledged after the session broke, without an error")
		return
	}
	b.drain(s, ms)
}

// broken reports whether Receive returns an error.
func (b *bench) broken(s broker.Session) bool {
	for range 3 {
		if _, err := b.glance(s, b.harness.quiet()); err != nil {
			return true
		}
	}
	return false
}
