// Command cloudorders takes orders from a queue, and pieces from a stock, whose rows
// are in SQLite. The queue is of Azure Service Bus, of Amazon SQS or of Kafka:
// service.go is the same for all of them.
//
//	SERVICEBUS_CONNECTION='Endpoint=…' go run ./examples/cloudorders
//	KAFKA_ADDRESSES=host:9092 go run ./examples/cloudorders
//	go run ./examples/cloudorders   # SQS, with the configuration of the AWS command line
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

// post is where orders come from, and where what was taken is announced.
type post struct {
	orders    broker.Source
	publisher broker.Publisher
	shipments string // a topic or queue
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p, err := dial(ctx, os.Getenv("SERVICEBUS_CONNECTION"), os.Getenv("KAFKA_ADDRESSES"))
	if err != nil {
		log.Fatal(err)
	}
	s, err := open(ctx, "orders.db", p)
	if err != nil {
		log.Fatal(err)
	}
	if err := s.run(ctx); err != nil {
		log.Fatal(err)
	}
}

// dial returns the broker that an address was given of, or SQS.
func dial(ctx context.Context, serviceBus, kafka string) (post, error) {
	switch {
	case serviceBus != "":
		client, err := azservicebus.NewClientFromConnectionString(serviceBus, nil)
		if err != nil {
			return post{}, err
		}
		return onServiceBus(client), nil
	case kafka != "":
		return onKafka(kafka), nil
	}
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return post{}, err
	}
	return onSQS(sqs.NewFromConfig(c)), nil
}

// open returns the service on a database.
func open(ctx context.Context, path string, p post) (*service, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	return &service{db: db, store: store, events: outbox.New(store, nil), post: p}, nil
}
