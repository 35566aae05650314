//go:build linux

package brokers_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbit is a private RabbitMQ.
type rabbit struct {
	*server.Instance
	names    atomic.Int64
	quorum   []string           // the quorum queues
	declared []func(testing.TB) // declare what was declared again
}

func startRabbit(t *testing.T, settings ...string) *rabbit {
	t.Helper()
	server.Need(t, server.RabbitMQ)
	i, err := server.StartRabbitMQ(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", i.LogTail())
		}
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &rabbit{Instance: i}
}

// kill kills the server after it has stored what was declared. RabbitMQ 3.10
// takes up to three seconds to write the name of a new queue to names.dets,
// which it does not sync. A queue that it does not find there after a crash
// stays without a leader.
func (r *rabbit) kill(tb testing.TB) {
	tb.Helper()
	proof.Must(tb, r.AwaitDeclared(proof.Soon(tb)))
	node := r.Identity() + "@localhost"
	file := filepath.Join(os.TempDir(), r.Identity(), "data", node, "quorum", node, "names.dets")
	proof.Await(tb, "the names of the quorum queues are on disk", func() bool {
		text, err := os.ReadFile(file)
		return err == nil && !slices.ContainsFunc(r.quorum, func(queue string) bool {
			return !bytes.Contains(text, []byte("%2F_"+queue))
		})
	})
	proof.Must(tb, r.Kill())
}

// restart kills the server, starts it, and declares everything again, as
// programs do when they start.
func (r *rabbit) restart(tb testing.TB) {
	tb.Helper()
	r.kill(tb)
	proof.Must(tb, r.Restart(tb.Context()))
	for _, declare := range r.declared {
		declare(tb)
	}
}

// rabbitPlace is a queue, an exchange that is bound to it by its name, and a
// queue for dead letters.
type rabbitPlace struct {
	rabbit          *rabbit
	broker          *rabbitbroker.Broker
	publisher       broker.Publisher
	exchange, queue string
	dead            string
}

// place creates a place. Both the options and the queue use its queue for dead
// letters.
func (r *rabbit) place(tb testing.TB, o rabbitbroker.Options, q rabbitbroker.QueueOptions) *rabbitPlace {
	tb.Helper()
	name := fmt.Sprintf("once-%d", r.names.Add(1))
	p := &rabbitPlace{rabbit: r, exchange: name, queue: name + ".queue", dead: name + ".dead"}
	q.Exchange, q.Topics = name, []string{p.queue}
	letters := &rabbitbroker.DeadLetter{RoutingKey: p.dead}
	if o.QueueDeadLetters {
		q.DeadLetter = letters
	} else {
		o.DeadLetter = letters
	}
	p.broker = rabbitbroker.New(r.DSN(), &o)
	p.publisher = p.broker.Publisher(name)
	tb.Cleanup(func() { _ = p.publisher.Close() })
	p.declare(tb, p.dead, rabbitbroker.QueueOptions{})
	p.declare(tb, p.queue, q)
	return p
}

func (p *rabbitPlace) declare(tb testing.TB, queue string, q rabbitbroker.QueueOptions) {
	tb.Helper()
	declare := func(tb testing.TB) {
		tb.Helper()
		proof.Must(tb, p.broker.DeclareQueue(proof.Soon(tb), queue, q))
	}
	declare(tb)
	p.rabbit.declared = append(p.rabbit.declared, declare)
	if !q.Classic {
		p.rabbit.quorum = append(p.rabbit.quorum, queue)
	}
}

// channel returns a channel that does not use the adapter.
func (r *rabbit) channel(tb testing.TB) *amqp.Channel {
	tb.Helper()
	conn, err := amqp.Dial(r.DSN())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatal(err)
	}
	return ch
}

// letters returns the dead letters and leaves them in their queue.
func (p *rabbitPlace) letters(tb testing.TB) []*broker.Message {
	tb.Helper()
	s := openSession(tb, p.broker.Queue(p.dead), 1000)
	defer s.Close(proof.Soon(tb))
	return receiveAll(tb, s)
}

func (p *rabbitPlace) message(i int) *broker.Message {
	return &broker.Message{ID: fmt.Sprintf("%s-%d", p.queue, i), Topic: p.queue, Body: []byte(fmt.Sprint(i))}
}

func (p *rabbitPlace) messages(n int) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, p.message(i))
	}
	return ms
}

func (p *rabbitPlace) publish(tb testing.TB, ms ...*broker.Message) {
	tb.Helper()
	publish(tb, p.publisher, ms...)
}

func (p *rabbitPlace) open(tb testing.TB, window int) broker.Session {
	tb.Helper()
	return openSession(tb, p.broker.Queue(p.queue), window)
}

func (p *rabbitPlace) harnessPlace(reason bool) brokertest.Place {
	return brokertest.Place{
		Publisher: p.publisher, Source: p.broker.Queue(p.queue), Topic: p.queue,
		DeadLetters: p.letters, NoReason: !reason, Unroutable: "nowhere",
	}
}
