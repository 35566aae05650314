//go:build unix

package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/testenv"
)

// All that once serve does, on the servers that it is for, with RabbitMQ to publish to.
func TestServeOnServers(t *testing.T) {
	for name, fresh := range servers {
		t.Run(name, func(t *testing.T) {
			for what, does := range map[string]func(*testing.T, string, *target.Target){"asks": serveAsks, "parks": serveParks,
				"forgets": serveForgets, "publishes": servePublishes} {
				t.Run(what, func(t *testing.T) {
					url := fresh(t)
					shop := open(t, url)
					if err := shop.Tables.Migrate(t.Context()); err != nil {
						t.Fatal(err)
					}
					does(t, url, shop)
				})
			}
		})
	}
}

// insert commits messages as a program without the library does.
func insert(t *testing.T, shop *target.Target, id, topic, body string) {
	t.Helper()
	binary := "x'" + hex.EncodeToString([]byte(body)) + "'"
	if shop.Engine == target.PostgreSQL {
		binary = `'\` + "x" + hex.EncodeToString([]byte(body)) + "'"
	}
	if _, err := shop.Tables.DB.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %[1]s (lane, id, topic, ordering_key, body) VALUES (1, '%[2]s', '%[3]s', '%[2]s', %[4]s)",
		shop.Tables.Names.Outbox(), id, topic, binary)); err != nil {
		t.Fatal(err)
	}
}

// queue is an exchange of RabbitMQ, with a queue for one topic.
type queue struct {
	t          *testing.T
	url, name  string
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{t: t, url: testenv.RabbitMQ(t), name: "cmd." + rand.Text()}
	connection, err := amqp.Dial(q.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	testenv.CheckRabbitMQ(t, connection.Properties)
	if q.channel, err = connection.Channel(); err != nil {
		t.Fatal(err)
	}
	if err := q.channel.ExchangeDeclare(q.name, "direct", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := q.channel.QueueDeclare(q.name, false, true, true, false, nil); err != nil {
		t.Fatal(err)
	}
	q.bind("order.paid")
	if q.deliveries, err = q.channel.Consume(q.name, "", true, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *queue) bind(topic string) {
	q.t.Helper()
	if err := q.channel.QueueBind(q.name, topic, q.name, false, nil); err != nil {
		q.t.Fatal(err)
	}
}

// config publishes to it, by way of $RABBIT_URL.
func (q *queue) config() string {
	return fmt.Sprintf("[rabbitmq]\nurl = \"${RABBIT_URL}\"\nexchange = %q\n[relay.retry]\nfirst = \"10ms\"\n", q.name)
}

func (q *queue) arrives(id, topic, body string) {
	q.t.Helper()
	select {
	case d := <-q.deliveries:
		if d.MessageId != id || string(d.Body) != body || d.RoutingKey != topic {
			q.t.Errorf("%s came with %q by %s, want %s", d.MessageId, d.Body, d.RoutingKey, id)
		}
	case <-time.After(testTime):
		q.t.Fatalf("%s did not come", id)
	}
}

func servePublishes(t *testing.T, url string, shop *target.Target) {
	q := newQueue(t)
	t.Setenv("RABBIT_URL", q.url)
	s := startService(t, url, q.config())
	insert(t, shop, "a", "order.paid", `{"n":1}`)
	insert(t, shop, "nowhere", "order.lost", "{}") // RabbitMQ gives it back, until there is a queue for it
	insert(t, shop, "b", "order.paid", `{"n":2}`)
	q.arrives("a", "order.paid", `{"n":1}`)
	q.arrives("b", "order.paid", `{"n":2}`)
	q.bind("order.lost")
	q.arrives("nowhere", "order.lost", "{}")
	s.await("/metrics", `once_outbox_messages_total\{once_name="serve",once_outcome="published"\} 3`)
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="pending"\} 0`)
	s.stop()
	leases, err := shop.Tables.Leases(t.Context())
	if err != nil || leases.Relays != 0 {
		t.Errorf("%d relays are alive after the end, %v", leases.Relays, err)
	}
	again := startService(t, url, q.config()) // nothing goes out a second time
	insert(t, shop, "c", "order.paid", "3")
	q.arrives("c", "order.paid", "3")
	again.stop()
}

// wire is a way to a server that can be cut.
type wire struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	links map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: listener, to: to, links: make(map[net.Conn]bool)}
	t.Cleanup(func() {
		listener.Close()
		w.set(true)
	})
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go w.link(from)
		}
	}()
	return w
}

func (w *wire) link(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	w.links[from] = true
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return
	}
	go func() {
		_, _ = io.Copy(to, from) // one of the two ends when the wire is cut, and then the other
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// set cuts the wire, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for link := range w.links {
		link.Close()
	}
	clear(w.links)
}

// While RabbitMQ is down, the service stays ready, and messages committed then
// are published when it is back.
func TestServeOnServersWithoutRabbitMQ(t *testing.T) {
	url := freshPostgres(t)
	shop := open(t, url)
	if err := shop.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := newQueue(t)
	to, err := neturl.Parse(q.url)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, to.Host)
	to.Host = w.listener.Addr().String()
	t.Setenv("RABBIT_URL", to.String())
	w.set(true)
	insert(t, shop, "a", "order.paid", "1")
	s := startService(t, url, q.config())
	s.await("/metrics", `once_outbox_refusals_total\{once_name="serve"\} [1-9][0-9]*`)
	if status, text := s.get("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d %q", status, text)
	}
	w.set(false)
	q.arrives("a", "order.paid", "1")
	s.await("/metrics", `once_outbox_messages_total\{once_name="serve",once_outcome="published"\} 1`)
	w.set(true)
	insert(t, shop, "b", "order.paid", "2")
	s.await("/metrics", `once_outbox_refusals_total\{once_name="serve"\} ([2-9]|[1-9][0-9]+)`)
	w.set(false)
	q.arrives("b", "order.paid", "2")
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="pending"\} 0`)
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="stuck"\} 0`)
	s.stop()
}
