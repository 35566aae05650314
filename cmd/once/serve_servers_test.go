//go:build unix

package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
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
					if err := shop.Migrate(t.Context()); err != nil {
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
	if _, err := shop.DB.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %[1]s (lane, id, topic, ordering_key, body) VALUES (1, '%[2]s', '%[3]s', '%[2]s', %[4]s)",
		shop.Names.Outbox(), id, topic, binary)); err != nil {
		t.Fatal(err)
	}
}

func servePublishes(t *testing.T, url string, shop *target.Target) {
	rabbit := testenv.RabbitMQ(t)
	connection, err := amqp.Dial(rabbit)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	testenv.CheckRabbitMQ(t, connection.Properties)
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := "cmd." + rand.Text()
	if err := channel.ExchangeDeclare(name, "direct", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(name, false, true, true, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(name, "order.paid", name, false, nil); err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(name, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("RABBIT_URL", rabbit)
	config := fmt.Sprintf("[rabbitmq]\nurl = \"${RABBIT_URL}\"\nexchange = %q\n[relay.retry]\nfirst = \"10ms\"\n", name)
	s := startService(t, url, config)
	insert(t, shop, "a", "order.paid", `{"n":1}`)
	insert(t, shop, "nowhere", "order.lost", "{}") // RabbitMQ gives it back, until there is a queue for it
	insert(t, shop, "b", "order.paid", `{"n":2}`)
	arrives := func(id, topic, body string) {
		t.Helper()
		select {
		case d := <-deliveries:
			if d.MessageId != id || string(d.Body) != body || d.RoutingKey != topic {
				t.Errorf("%s came with %q by %s, want %s", d.MessageId, d.Body, d.RoutingKey, id)
			}
		case <-time.After(testTime):
			t.Fatalf("%s did not come", id)
		}
	}
	arrives("a", "order.paid", `{"n":1}`)
	arrives("b", "order.paid", `{"n":2}`)
	if err := channel.QueueBind(name, "order.lost", name, false, nil); err != nil {
		t.Fatal(err)
	}
	arrives("nowhere", "order.lost", "{}")
	s.await("/metrics", `once_outbox_messages_total\{once_name="serve",once_outcome="published"\} 3`)
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="pending"\} 0`)
	s.stop()
	leases, err := shop.Leases(t.Context())
	if err != nil || leases.Relays != 0 {
		t.Errorf("%d relays are alive after the end, %v", leases.Relays, err)
	}
	again := startService(t, url, config) // nothing goes out a second time
	again.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="pending"\} 0`)
	again.stop()
	select {
	case d := <-deliveries:
		t.Errorf("%s came again", d.MessageId)
	default:
	}
}
