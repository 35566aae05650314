//go:build linux

package publish

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/outbox"
)

// The points at which a bridge kills itself.
const (
	diesInHandler  = "before its commit"
	diesBeforeAck  = "between its commit and its ack"
	diesBeforeSent = "when it has published"
	diesAfterSent  = "when it has written that down"
)

var deaths = []string{diesInHandler, diesBeforeAck, diesBeforeSent, diesAfterSent, ""}

// bridge consumes messages. In the transaction of each, it writes a row and
// puts another message, which it also publishes.
func (p plan) bridge(ctx context.Context, w *world, logger *slog.Logger) error {
	in, end, err := p.Link.source(p.Link.In, w.store.(once.Store))
	if err != nil {
		return err
	}
	defer end()
	publisher, closed, err := p.Link.publisher()
	if err != nil {
		return err
	}
	defer closed()
	if p.Dies == diesBeforeAck {
		in = &deadlySource{in}
	}
	c := &inbox.Consumer{Name: "bridge", Source: in, Checkpoint: p.Link.isLog(), BatchSize: 4, Concurrency: 2,
		Policy: once.Policy{Lease: time.Second}, StopTime: 5 * time.Second,
		Retry: inbox.Retry{First: 10 * time.Millisecond, Limit: 100 * time.Millisecond}}
	var handled atomic.Int64
	c.Handler = w.handler(func(x tx, m *broker.Message) error {
		if err := p.pass(x, m); err != nil {
			return err
		}
		if handled.Add(1) == 3 && p.Dies == diesInHandler {
			fleet.DieNow()
		}
		return nil
	})
	s := w.store
	if p.Dies == diesBeforeSent || p.Dies == diesAfterSent {
		s = gated(s, p.deadlyGate())
	}
	relay := quick(&outbox.Relay{Store: s, Publisher: publisher, Lease: p.Lease, Batch: 5, Logger: logger})
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(ctx) }()
	err = c.Run(ctx)
	if ended := <-relayed; err == nil {
		err = ended
	}
	return err
}

// pass writes a row for a message, and puts a message about it.
func (p plan) pass(x tx, m *broker.Message) error {
	seq, err := strconv.ParseInt(string(m.Body), 10, 64)
	if err != nil {
		return err
	}
	out := message("out-"+m.ID, m.OrderingKey, seq)
	out.Topic = p.Link.Out
	if err := x.exec(addMade, out.ID, m.OrderingKey, seq); err != nil {
		return err
	}
	return x.put(0, out)
}

func (p plan) deadlyGate() gate {
	return func(send func() error) error {
		if p.Dies == diesBeforeSent {
			fleet.DieNow()
		}
		err := send()
		if err == nil {
			fleet.DieNow()
		}
		return err
	}
}

// deadlySource has sessions that kill the process at their first Ack.
type deadlySource struct{ broker.Source }

func (s *deadlySource) Open(ctx context.Context, window int) (broker.Session, error) {
	session, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	if seeker, ok := session.(broker.Seeker); ok {
		return struct {
			deadlySession
			broker.Seeker
		}{deadlySession{session}, seeker}, nil
	}
	return deadlySession{session}, nil
}

type deadlySession struct{ broker.Session }

func (deadlySession) Ack(context.Context, []broker.Delivery) error {
	fleet.DieNow()
	return nil
}

// TestFromMessageToMessage kills a bridge at each point of its work and
// restarts it, while each message comes twice. A consumer handles what the
// bridge publishes.
func TestFromMessageToMessage(t *testing.T) {
	t.Parallel()
	modes := map[string]string{rabbit: pgTable, natsJS: pgRows, kafka: pgLog, redisS: pgRows, sqsQ: pgRows, pubsub: pgRows, hubs: pgTable, azure: pgRows}
	beside(t, 3, []string{rabbit, natsJS, kafka, redisS, sqsQ, pubsub, hubs, azure}, func(t *testing.T, kind string) {
		w := newWorldOn(t, modes[kind])
		w.Exec(t, "CREATE TABLE arrived (id VARCHAR(99), ord VARCHAR(99), seq BIGINT)")
		o := openOffice(t, kind)
		final := w.finalConsumer(t, o.link)
		runConsumer(t, final)
		p := plan{Base: w.Place, Role: roleBridge, Link: o.link, Lease: 1500 * time.Millisecond}
		sent := 0
		for _, death := range deaths {
			p.Dies, p.Name = death, "bridge that dies "+death
			o.publish(t, sent, sent+8)
			if !o.isLog() { // what comes twice has its ID twice, which a position alone does not tell
				o.publish(t, sent, sent+8)
			}
			sent += 8
			b := fleet.Start(t, p)
			if death == "" {
				defer func() {
					if t.Failed() {
						t.Logf("of %d messages %d are made and %d arrived, %d wait; the bridge says: %s", sent,
							w.count(t, "SELECT count(*) FROM made"), w.count(t, "SELECT count(*) FROM arrived"), w.waits(t), b.Complaints())
					}
				}()
				await(t, "all is handled, and has arrived", func() bool {
					ok := w.count(t, "SELECT count(*) FROM made") >= sent && w.count(t, "SELECT count(*) FROM arrived") >= sent
					return ok && w.waits(t) == 0
				})
				b.Leave(t)
				break
			}
			select {
			case <-b.Ended():
			case <-time.After(patience):
				t.Fatalf("the %s lives: %s", p.Name, b.Complaints())
			}
			if !b.WasKilled() {
				t.Fatalf("the %s ended by itself: %s", p.Name, b.Complaints())
			}
			if kind == kafka {
				o.expel(t, o.In)
			}
		}
		for _, place := range []string{"made", "arrived"} {
			if n := w.count(t, "SELECT count(*) FROM "+place); n != sent {
				t.Errorf("%d rows were %s, of %d messages", n, place, sent)
			}
			if n := w.count(t, "SELECT count(DISTINCT id) FROM "+place); n != sent {
				t.Errorf("rows of %d different messages were %s, and not %d", n, place, sent)
			}
		}
	})
}

// finalConsumer records what it handles.
func (w *world) finalConsumer(t testing.TB, l link) *inbox.Consumer {
	t.Helper()
	out, end, err := l.source(l.Out, w.store.(once.Store))
	must(t, err)
	t.Cleanup(end)
	c := &inbox.Consumer{Name: "final", Source: out, Checkpoint: l.isLog(),
		Retry: inbox.Retry{First: 10 * time.Millisecond, Limit: 100 * time.Millisecond},
		Handler: w.handler(func(x tx, m *broker.Message) error {
			seq, err := strconv.ParseInt(string(m.Body), 10, 64)
			if err != nil {
				return err
			}
			return x.exec("INSERT INTO arrived (id, ord, seq) VALUES (?, ?, ?)", m.ID, m.OrderingKey, seq)
		})}
	if c.Checkpoint { // what a relay repeats lies in the log twice, and its position does not tell
		c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
	}
	return c
}

func runConsumer(t testing.TB, c *inbox.Consumer) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// publish publishes messages to the source of the bridge.
func (o *office) publish(t testing.TB, from, to int) {
	t.Helper()
	var ms []*broker.Message
	for i := from; i < to; i++ {
		m := message(fmt.Sprintf("in%d", i), fmt.Sprintf("k%d", i%3), int64(i))
		m.Topic = o.In
		ms = append(ms, m)
	}
	for i, err := range o.sender.Publish(soon(t), ms) {
		if err != nil {
			t.Fatalf("%s: %v", ms[i].ID, err)
		}
	}
}
