//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/nats-io/nats.go/jetstream"
)

// caused are the places of TestTheCauseAndTheOrderTravel.
var caused = map[string]func(*testing.T) brokertest.Place{
	"rabbitmq": func(t *testing.T) brokertest.Place {
		return startRabbit(t).place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{}).harnessPlace(true)
	},
	"kafka": func(t *testing.T) brokertest.Place {
		w := fakeKafka(t).stand(2, kafkabroker.Options{})
		return brokertest.Place{Publisher: w.p, Source: w.b.Topics(w.group, w.topic), Topic: w.topic}
	},
	"nats": func(t *testing.T) brokertest.Place {
		p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
		return brokertest.Place{Publisher: p.Publisher(), Source: p.source, Topic: p.topic}
	},
	"nats log": func(t *testing.T) brokertest.Place {
		js := dialNATS(t, offices.StartNATS(t))
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
		proof.Must(t, err)
		b := natsbroker.New(js, nil)
		return brokertest.Place{Publisher: b.Publisher(), Source: keepPlace(b.Log("ORDERS", "billing")), Topic: "orders"}
	},
	"redis": func(t *testing.T) brokertest.Place {
		return startRedis(t).place(t, redisbroker.Options{}).harnessPlace()
	},
	"pubsub": func(t *testing.T) brokertest.Place {
		return startPubSub(t).place(t, pubsubbroker.Options{}, nil).harnessPlace()
	},
	"servicebus": func(t *testing.T) brokertest.Place {
		return startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: true}).harnessPlace()
	},
	"eventhubs": func(t *testing.T) brokertest.Place {
		p := startHubs(t).place(t, 3)
		return brokertest.Place{Publisher: p.publisher, Source: keepPlace(p.source), Topic: p.hub}
	},
	"sqs": func(t *testing.T) brokertest.Place {
		client, queue := offices.DialSQS(offices.StartSQS(t).URL()), "orders.fifo"
		_, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &queue, Attributes: map[string]string{"FifoQueue": "true"}})
		proof.Must(t, err)
		b := sqsbroker.New(client, nil)
		return brokertest.Place{Publisher: b.Publisher(), Source: b.Queue(queue), Topic: queue}
	},
}

// TestTheCauseAndTheOrderTravel puts messages inside guarded work and handles them:
// the record of each names the work as its cause, a message with an ordering key
// waits for the parked one before it, and one without waits for nothing.
func TestTheCauseAndTheOrderTravel(t *testing.T) {
	proof.Beside(t, 3, slices.Sorted(maps.Keys(caused)), func(t *testing.T, name string) {
		p := caused[name](t)
		s := memstore.New(nil)
		box := outbox.New(s, nil)
		place := &once.Operation[string]{Name: "place-order"}
		order := place.For("42")
		_, err := once.DoTx(t.Context(), s, order, func(ctx context.Context, tx *memstore.Tx) (string, error) {
			for i := range 4 {
				m := &broker.Message{ID: fmt.Sprint("k", i), Topic: p.Topic, OrderingKey: "Customer 7", Body: []byte("{}")}
				if err := box.Put(ctx, tx, m); err != nil {
					return "", err
				}
			}
			return "placed", box.Put(ctx, tx, &broker.Message{ID: "free", Topic: p.Topic, Body: []byte("{}")},
				&broker.Message{ID: "last", Topic: p.Topic, OrderingKey: order.Key().String(), Body: []byte("{}")})
		})
		proof.Must(t, err)

		var mu sync.Mutex
		var handled []string
		came := make(map[string]broker.Message)
		seen := func() ([]string, map[string]broker.Message) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(handled), maps.Clone(came)
		}
		c := &inbox.Consumer{Name: "billing", Source: p.Source, StopTime: time.Second, Stats: &inbox.Stats{}}
		c.Handler = inbox.Tx(s, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			came[m.ID] = *m
			if m.ID == "k1" {
				return once.Permanent(errors.New("no such customer"))
			}
			handled = append(handled, m.ID)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		run := func(what string, run func(context.Context) error) {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		run("the relay", (&outbox.Relay{Store: s, Publisher: p.Publisher}).Run)
		run("the consumer", c.Run)
		proof.Await(t, "three messages are handled, one is parked, and two wait for it", func() bool {
			shelved, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: "billing"})
			return err == nil && len(shelved) == 3 && c.Stats.Handled.Load() == 3
		})
		cancel()
		running.Wait()
		done, messages := seen()
		if slices.Sort(done); !slices.Equal(done, []string{"free", "k0", "last"}) {
			t.Errorf("handled were %q: what comes after a parked message of its ordering key waits", done)
		}
		for id, m := range messages {
			key := "Customer 7"
			switch id {
			case "free":
				key = ""
			case "last":
				key = order.Key().String()
			}
			if m.OrderingKey != key || m.Header[broker.KeyHeader] != order.Key().String() || m.Header[broker.SeqHeader] == "" {
				t.Errorf("%s came with the ordering key %q and the headers %q", id, m.OrderingKey, m.Header)
			}
		}
		page, err := s.List(t.Context(), once.RecordQuery{Cause: order.Key().UUID(), Operation: "billing"})
		proof.Must(t, err)
		var led []string
		for _, rec := range page.Records {
			led = append(led, rec.Key.ID)
		}
		if slices.Sort(led); !slices.Equal(led, []string{"free", "k0", "k1", "last"}) {
			t.Errorf("the order led to the work on %q", led)
		}
	})
}
