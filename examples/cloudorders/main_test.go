package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/internal/fakesqs"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// place is an imitation of a broker: where orders go, and where shipments come from.
type place struct {
	post
	orders    string
	shipments broker.Source
}

// places start them.
var places = map[string]func(t *testing.T) place{
	"Azure Service Bus": func(t *testing.T) place {
		s, err := fakeamqp.Start()
		must(t, err)
		t.Cleanup(s.Close)
		for _, queue := range []string{"orders", "shipments"} {
			s.CreateQueue(queue, fakeamqp.QueueOptions{Sessions: true})
		}
		client, err := azservicebus.NewClientFromConnectionString(s.ConnectionString(), nil)
		must(t, err)
		b := servicebusbroker.New(client, &servicebusbroker.Options{Sessions: true})
		return place{onServiceBus(client), "orders", b.Queue("shipments")}
	},
	"Amazon SQS": func(t *testing.T) place {
		s := httptest.NewServer(new(fakesqs.Server))
		t.Cleanup(s.Close)
		client := sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &s.URL,
			Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
		for _, queue := range []string{"orders.fifo", "shipments.fifo"} {
			_, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(queue),
				Attributes: map[string]string{"FifoQueue": "true"}})
			must(t, err)
		}
		return place{onSQS(client), "orders.fifo", sqsbroker.New(client, &sqsbroker.Options{Wait: time.Second}).Queue("shipments.fifo")}
	},
	"Kafka": func(t *testing.T) place {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders", "shipments"))
		must(t, err)
		t.Cleanup(c.Close)
		b := kafkabroker.New(&kafkabroker.Options{Client: []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}})
		return place{onKafka(c.ListenAddrs()[0]), "orders", b.Topics("shipping", "shipments")}
	},
}

// Each order comes twice, and takes its pieces once. What it announces is shipped
// once.
func TestEachOrderIsTakenOnce(t *testing.T) {
	for name, start := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			s, err := open(t.Context(), filepath.Join(t.TempDir(), "orders.db"), p.post)
			must(t, err)
			db := s.db
			_, err = db.Exec(`INSERT INTO stock VALUES ('apple', 100), ('pear', 100); CREATE TABLE shipped (id TEXT, item TEXT)`)
			must(t, err)
			shipping := &inbox.Consumer{Name: "shipping", Source: p.shipments,
				Handler: inbox.Tx(s.store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
					var o order
					if err := json.Unmarshal(m.Body, &o); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, `INSERT INTO shipped VALUES (?, ?)`, o.ID, o.Item)
					return err
				})}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- once.RunAll(ctx, s.run, shipping.Run) }()

			var messages []*broker.Message
			for i := range 10 {
				for _, item := range []string{"apple", "pear"} {
					o := order{ID: fmt.Sprint(item, "-", i), Item: item, Pieces: 3}
					body, err := json.Marshal(o)
					must(t, err)
					messages = append(messages, &broker.Message{ID: o.ID, Topic: p.orders, OrderingKey: item, Body: body})
				}
			}
			last := len(messages) - 2 // the last of each item comes once, after the copies of all others
			for _, ms := range [][]*broker.Message{messages[:last], messages[:last], messages[last:]} {
				for i, err := range p.publisher.Publish(t.Context(), ms) {
					if err != nil {
						t.Fatal(ms[i].ID, err)
					}
				}
			}
			count := func(query string) (n int) {
				must(t, db.QueryRow(query).Scan(&n))
				return n
			}
			testenv.Await(t, "the last order of each item is shipped", func() bool {
				return count(`SELECT count(*) FROM shipped WHERE id IN ('apple-9', 'pear-9')`) == 2
			})
			stop()
			must(t, <-ended)
			for query, want := range map[string]int{
				`SELECT sum(pieces) FROM stock`:          200 - 3*20,
				`SELECT count(*) FROM shipped`:           20,
				`SELECT count(DISTINCT id) FROM shipped`: 20,
			} {
				if n := count(query); n != want {
					t.Errorf("%s is %d, want %d", query, n, want)
				}
			}
		})
	}
}
