package brokers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go/jetstream"
)

func natsReplicated(s *jetstream.StreamConfig, c *jetstream.ConsumerConfig) {
	s.Replicas = 3
	c.AckWait = 3 * time.Second
}

// Confirmed messages are stored in the order of their keys, although their
// server is killed meanwhile.
func TestNATSLosesNoConfirmedMessageWhenKilled(t *testing.T) {
	t.Run("one server", func(t *testing.T) {
		server := startNATSProcess(t)
		p := newNATSPlace(t, dialNATS(t, server), nil)
		publishThrough(t, p, func() { server.Restart(t) })
	})
	t.Run("leader of three", func(t *testing.T) {
		all := startNATSCluster(t)
		p := newNATSPlace(t, dialNATS(t, all...), nil, natsReplicated)
		publishThrough(t, p, func() { killNATSLeader(t, all, p, false) })
	})
}

func publishThrough(t *testing.T, p *natsPlace, disturb func()) {
	const callers, batches, size = 4, 60, 5
	var wg sync.WaitGroup
	third := make(chan struct{}, 2*callers)
	for c := range callers {
		wg.Go(func() {
			pub := p.Publisher()
			defer pub.Close()
			for b := range batches {
				if b%(batches/3) == 1 && b > 1 {
					third <- struct{}{}
				}
				var ms []*broker.Message
				for i := range size {
					ms = append(ms, &broker.Message{ID: fmt.Sprintf("%d-%d", c, size*b+i), Topic: p.topic, OrderingKey: fmt.Sprint(c)})
				}
				if err := natsPersist(pub, ms); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	<-third
	disturb()
	for range callers {
		<-third
	}
	disturb()
	wg.Wait()
	if t.Failed() {
		return
	}
	// First arrivals are in order from batch to batch, because each caller
	// continues only when its batch is confirmed. Within a batch, later
	// messages may overtake those that were sent to a server that died.
	s, came, all := p.open(t, 100), make(map[string]bool), make(map[string]int)
	for seen := 0; seen < callers*batches*size; {
		ds := receive(t, s, 1)
		key, i := ds[0].Message.OrderingKey, 0
		fmt.Sscanf(ds[0].Message.ID, key+"-%d", &i)
		if complete := all[key] - all[key]%size; i >= complete+size {
			t.Fatalf("%s came, and of the %d before it only %d have", ds[0].Message.ID, i-i%size, all[key])
		}
		if id := ds[0].Message.ID; !came[id] {
			came[id] = true
			all[key]++
			seen++
		}
		if err := s.Ack(t.Context(), ds); err != nil {
			t.Fatal(err)
		}
	}
}

// natsPersist publishes like the relay: it repeats the first failed message and
// all later ones until all are confirmed.
func natsPersist(pub broker.Publisher, ms []*broker.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), natsPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		errs := pub.Publish(ctx, ms)
		if errs == nil {
			return nil
		}
		for i, err := range errs {
			if err != nil {
				ms = ms[i:]
				break
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%v: %v", ctx.Err(), errs)
		}
	}
}

// Unsettled messages come again and settled ones do not, although their server
// is killed meanwhile. Messages whose ack failed come again to sessions that stay
// open.
func TestNATSRedeliversUnsettledMessagesWhenKilled(t *testing.T) {
	t.Run("one server", func(t *testing.T) {
		server := startNATSProcess(t)
		p := newNATSPlace(t, dialNATS(t, server), nil, natsAckWait(3*time.Second))
		consumeThrough(t, p, func() { server.Restart(t) })
	})
	t.Run("leader of three", func(t *testing.T) {
		all := startNATSCluster(t)
		p := newNATSPlace(t, dialNATS(t, all...), nil, natsReplicated)
		consumeThrough(t, p, func() { killNATSLeader(t, all, p, true) })
	})
}

func consumeThrough(t *testing.T, p *natsPlace, disturb func()) {
	const n = 400
	p.publish(t, n)
	begun := make(chan struct{})
	c := &natsConsumers{t: t, place: p, quarter: n / 4, begun: begun, done: make(chan struct{}),
		acked: make(map[string]bool)}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(c.done)
	for range 2 {
		wg.Go(c.run)
	}
	<-begun
	disturb()
	var last *jetstream.ConsumerInfo
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.Failed() {
			info, _ := json.Marshal(last)
			t.Logf("%d have come, in %d sessions; the consumer: %s", len(c.acked), c.opened, info)
		}
	}()
	proof.Await(t, "nothing is pending", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		info, err := p.js.Consumer(ctx, p.stream, "billing")
		if err == nil {
			last = info.CachedInfo()
		}
		return err == nil && last.NumAckPending == 0 && last.NumPending == 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d messages, %d redelivered, %d sessions", len(c.acked), c.again, c.opened)
	if len(c.acked) != n {
		t.Errorf("the server is done with all, and %d of %d have come", len(c.acked), n)
	}
}

// natsConsumers acknowledges all messages.
type natsConsumers struct {
	t           *testing.T
	place       *natsPlace
	quarter     int
	begun, done chan struct{}

	mu            sync.Mutex
	acked         map[string]bool // what has come: true if its ack was confirmed
	again, opened int
}

// run opens another session whenever one breaks.
func (c *natsConsumers) run() {
	deadline, cancel := context.WithTimeout(context.Background(), 3*natsPatience)
	defer cancel()
	for !c.over() && deadline.Err() == nil {
		s, err := c.place.source.Open(deadline, 20)
		if err != nil {
			continue // it has waited for an answer
		}
		c.mu.Lock()
		c.opened++
		c.mu.Unlock()
		for err == nil && !c.over() {
			err = c.turn(deadline, s)
		}
		s.Close(deadline)
	}
}

func (c *natsConsumers) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// turn receives some messages. It returns an error if the session is broken.
func (c *natsConsumers) turn(ctx context.Context, s broker.Session) error {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ds, err := s.Receive(short, 5)
	if err != nil && short.Err() == nil {
		return err
	}
	for _, d := range ds {
		c.mu.Lock()
		if c.acked[d.Message.ID] && !d.Redelivered {
			c.t.Errorf("%s was acknowledged, and comes again as new", d.Message.ID)
		}
		if d.Redelivered {
			c.again++
		}
		c.mu.Unlock()
		c.note(d.Message.ID, false)
		err := s.Ack(ctx, []broker.Delivery{d})
		if err != nil {
			c.t.Logf("Ack of %s: %v", d.Message.ID, err) // it comes again
		}
		c.note(d.Message.ID, err == nil)
	}
	return nil
}

func (c *natsConsumers) note(id string, confirmed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked[id] = c.acked[id] || confirmed
	if len(c.acked) == c.quarter && c.begun != nil {
		close(c.begun)
		c.begun = nil
	}
}

// A stream and a consumer have the same identity at every leader, so a session
// survives a change.
func TestNATSLeaderChangeKeepsTheSession(t *testing.T) {
	all := startNATSCluster(t)
	p := newNATSPlace(t, dialNATS(t, all...), nil, natsReplicated)
	p.publish(t, 10)
	s := p.open(t, 10)
	ds := receive(t, s, 5)
	killNATSLeader(t, all, p, false)
	killNATSLeader(t, all, p, true)
	ds = append(ds, receive(t, s, 5)...)
	if err := s.Ack(t.Context(), ds); err != nil {
		t.Errorf("Ack across the change: %v", err)
	}
}
