//go:build linux

package publish

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// TestBrokerThatGoesAway loses confirmations of RabbitMQ, kills it, keeps it
// down for a while, and restarts it. No message is blamed for an outage, and
// all arrive in order. If a connection is cut while others work, an attempt may
// count.
func TestBrokerThatGoesAway(t *testing.T) {
	t.Parallel()
	server.Need(t, server.RabbitMQ)
	w := newWorldOn(t, pgTable)
	instance, err := server.StartRabbitMQ(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
	})
	const queue = "orders" // of a server that is the test's alone
	direct := rabbitbroker.New(instance.DSN(), nil)
	must(t, direct.DeclareQueue(soon(t), queue, rabbitbroker.QueueOptions{Classic: true}))
	must(t, instance.AwaitDeclared(soon(t)))
	proxy, through := wire.Between(t, instance.DSN(), wire.Raw)
	publisher := rabbitbroker.New(through, nil).Publisher("")
	t.Cleanup(func() { _ = publisher.Close() })

	r := &outbox.Relay{Store: w.store, Publisher: publisher, Batch: 50, Lease: 20 * time.Second, Stats: new(outbox.Stats),
		Logger: testLogger(t)}
	producing := startFleet(t, plan{Base: w.Place, Role: roleProducer, Work: workload{Pause: 10 * time.Millisecond}}, 2)
	stop := run(t, r)
	published := func(n int64) {
		t.Helper()
		more := r.Stats.Published.Load() + n
		await(t, fmt.Sprintf("%d messages more are published", n), func() bool { return r.Stats.Published.Load() >= more })
	}
	published(20)
	for range 10 { // what was published is there, and its confirmation is not
		proxy.Cut()
		published(5)
	}
	flaws := blamed(r.Stats)
	outage := func(begin, end func()) {
		t.Helper()
		published(150) // what had failed before is out: one that fails again is taken for the fault of the message
		before := blamed(r.Stats)
		begin()
		waited := w.waits(t)
		await(t, "messages wait", func() bool { return w.waits(t) > waited+20 })
		end()
		published(20)
		if n := blamed(r.Stats) - before; n > 0 {
			t.Errorf("%d attempts were taken for the messages' fault, in an outage of the broker", n)
		}
	}
	outage(proxy.Down, proxy.Up)
	outage(func() { must(t, instance.Kill()) }, func() { must(t, instance.Restart(t.Context())) })
	producing.Stop()
	settled(t, patience, func() []string { return w.waiting(t) })
	stop()
	if left := w.outgoing(t, store.Stuck); len(left) > 0 {
		t.Errorf("%d messages are stuck", len(left))
	}
	v := judge(w.made(t), arrivals(t, direct.Queue(queue), len(w.made(t))))
	v.check(t, true)
	t.Logf("%v; %d calls failed, and %d attempts with a connection that was cut", v, r.Stats.Refused.Load(), flaws)
}

// blamed returns the number of attempts that were counted against messages.
func blamed(s *outbox.Stats) int64 { return s.Failed.Load() + s.Stuck.Load() }

// arrivals returns the messages in a queue, in order. It waits until the given
// number of different messages have come and no more do.
func arrivals(t testing.TB, q broker.Source, different int) (prints []print) {
	t.Helper()
	session, err := q.Open(soon(t), 100)
	must(t, err)
	defer session.Close(soon(t))
	known := make(map[string]bool)
	for {
		wait := patience
		if len(known) >= different {
			wait = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		ds, err := session.Receive(ctx, 100)
		over := ctx.Err() != nil
		cancel()
		if over {
			return prints
		}
		must(t, err)
		for _, d := range ds {
			m := d.Message
			known[m.ID] = true
			prints = append(prints, print{sheetOf(m), ""})
		}
		must(t, session.Ack(soon(t), ds))
	}
}
