//go:build linux

package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/internal/testenv"
)

// TestRealBrokerRestartsInTheMiddle restarts a broker on its files while a
// handler has written and not committed.
func TestRealBrokerRestartsInTheMiddle(t *testing.T) {
	for _, engine := range []string{pgStore, sqlite} {
		for _, kind := range []string{kafka, natsJS, natsLg, rabbit, redisS, sqsFIF, pubsub, hubs, azureS} {
			t.Run(engine+" "+kind, func(t *testing.T) {
				const n = 12
				w := newWorldOn(t, engine)
				s := newStand(t, w)
				o := openOffice(t, kind, false)
				source, end, err := o.source(w.store)
				must(t, err)
				t.Cleanup(end)
				var calls atomic.Int64
				c := &inbox.Consumer{Name: "billing", Source: source, BatchSize: 4, Concurrency: 1,
					Checkpoint: kind == kafka || kind == natsLg || kind == hubs, Stats: new(inbox.Stats), StopTime: 5 * time.Second}
				c.Handler = w.batch(func(ctx context.Context, tx rows, ms []*broker.Message) error {
					err := s.place.handleAll(ctx, tx, ms)
					if calls.Add(1) == 2 {
						o.disturb(t)
					}
					return err
				})
				o.publish(t, plainMessagesOf(o, n))
				stop := run(t, c)
				w.handled(t, n)
				await(t, "nothing is left at the broker", func() bool { return o.idle(t) })
				must(t, stop())
				w.onceEach(t, n)
			})
		}
	}
}

// TestTopicMadeAnew is TestLogMadeAnew with a topic that is recreated at the
// broker.
func TestTopicMadeAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, s *stand) {
		o := openKafka(t, 1)
		consumer := func() *inbox.Consumer {
			source, _, err := o.source(s.store)
			must(t, err)
			return &inbox.Consumer{Name: "billing", Source: source, Checkpoint: true, Handler: s.tx(s.place.handle)}
		}
		ms := plainMessagesOf(o, 5)
		o.publish(t, ms[:3])
		ended := make(chan error, 1)
		go func() { ended <- consumer().Run(soon(t)) }()
		s.handled(t, 3)
		offices.RemoveTopic(t, o.Address, o.topic)
		offices.CreateTopic(t, o.Address, o.topic, 1)
		o.publish(t, ms[3:])
		select {
		case err := <-ended:
			wantLogChanged(t, err)
		case <-time.After(testenv.Patience):
			t.Fatal("the consumer goes on")
		}
		s.onceEach(t, 3)
	})
}
