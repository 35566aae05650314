package membroker_test

import (
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

// both runs a test on a queue and on a log.
func both(t *testing.T, test func(t *testing.T, b *membroker.Broker, src broker.Source)) {
	for _, kind := range []string{"queue", "log"} {
		t.Run(kind, func(t *testing.T) {
			b, src := place(kind, nil)
			test(t, b, src)
		})
	}
}

// place returns a new broker with a queue, or a log of one partition, for the
// topic "q".
func place(kind string, o *membroker.Options) (*membroker.Broker, broker.Source) {
	b := membroker.New(o)
	if kind == "queue" {
		return b, b.Queue("q")
	}
	return b, b.Log("q", "g", 1)
}

func TestRestartBreaksSessions(t *testing.T) {
	both(t, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		s, waiting := open(t, src, 9), open(t, src, 9)
		publish(t, b, "q", "1", "2")
		ds := want(t, s, "1 2")
		must(t, s.Ack(ctx, ds[:1]))
		broken := make(chan error)
		go func() {
			_, err := waiting.Receive(ctx, 1)
			broken <- err
		}()
		b.Restart()
		if err := <-broken; err == nil {
			t.Error("a session that waited is not broken")
		}
		for name, err := range map[string]error{
			"Ack":    s.Ack(ctx, ds[1:]),
			"Return": s.Return(ctx, ds[1:], 0),
			"Reject": s.Reject(ctx, ds[1:], ""),
		} {
			if err == nil {
				t.Errorf("%s in a broken session says that all is well", name)
			}
		}
		must(t, s.Close(ctx))
		want(t, open(t, src, 9), "2+2")
	})
}

func TestABrokerThatIsDownFailsAllCalls(t *testing.T) {
	both(t, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		s := open(t, src, 9)
		publish(t, b, "q", "1")
		want(t, s, "1")
		b.Down(true)
		if _, err := s.Receive(ctx, 1); err == nil {
			t.Error("a broker that is down delivers")
		}
		if _, err := src.Open(ctx, 1); err == nil {
			t.Error("a broker that is down opens sessions")
		}
		if errs := b.Publisher().Publish(ctx, []*broker.Message{message("2", "q", "")}); len(errs) != 1 || errs[0] == nil {
			t.Errorf("a broker that is down takes messages: %v", errs)
		}
		b.Down(false)
		if _, err := s.Receive(ctx, 1); err == nil {
			t.Error("a session has survived that the broker was down")
		}
		publish(t, b, "q", "3")
		want(t, open(t, src, 9), "1+2 3")
	})
}

func TestALostAckRedelivers(t *testing.T) {
	both(t, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		s := open(t, src, 3)
		publish(t, b, "q", "1", "2", "3")
		b.LoseAcks(2)
		must(t, s.Ack(ctx, want(t, s, "1 2 3")))
		must(t, s.Ack(ctx, want(t, s, "1+2 2+2")))
		b.LoseAcks(1)
		b.LoseAcks(0)
		publish(t, b, "q", "4")
		must(t, s.Ack(ctx, want(t, s, "4")))
		empty(t, s)
	})
}

func TestALostConfirmIsStored(t *testing.T) {
	both(t, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		b.LoseConfirms(1)
		ms := []*broker.Message{message("1", "q", "key"), message("2", "q", "key")}
		if errs := b.Publisher().Publish(ctx, ms); len(errs) != 2 || errs[0] == nil || errs[1] != nil {
			t.Errorf("the first confirmation of two is lost: %v", errs)
		}
		want(t, open(t, src, 9), "1 2")
	})
}

func TestADuplicateIsNotRedelivered(t *testing.T) {
	both(t, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		b.Duplicate(1)
		b.Duplicate(1)
		publish(t, b, "q", "1", "2", "3")
		want(t, open(t, src, 9), "1 1 2 2 3")
	})
}
