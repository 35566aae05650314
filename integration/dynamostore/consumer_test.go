// Package dynamostore tests consumers on the store in DynamoDB. The service is
// internal/dynamofake.
package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/dynamostore"
)

// shop counts the orders of customers in a table.
type shop struct {
	url    string
	client *dynamodb.Client
}

const table = "orders"

func dial(url string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &url,
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
}

func openShop(t *testing.T, fake *dynamofake.Server) *shop {
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	s := &shop{server.URL, dial(server.URL)}
	proof.Must(t, s.open().CreateTable(t.Context()))
	createTable(t, s.client, table)
	return s
}

// createTable makes a table of items with an id.
func createTable(t *testing.T, c *dynamodb.Client, name string) {
	t.Helper()
	_, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{TableName: &name,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}}})
	proof.Must(t, err)
}

// open returns a store as another process has it.
func (s *shop) open() *dynamostore.Store { return dynamostore.New(dial(s.url), nil) }

func key(id string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: id}}
}

// count adds one to the number of an id in a transaction.
func count(tx *dynamostore.Tx, id string) error {
	return tx.Update(types.Update{TableName: aws.String(table), Key: key(id),
		UpdateExpression: aws.String("SET made = if_not_exists(made, :none) + :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":one": &types.AttributeValueMemberN{Value: "1"}, ":none": &types.AttributeValueMemberN{Value: "0"}}})
}

func (s *shop) counted(t *testing.T, id string) string {
	out, err := s.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String(table), Key: key(id), ConsistentRead: aws.Bool(true)})
	proof.Must(t, err)
	made, _ := out.Item["made"].(*types.AttributeValueMemberN)
	if made == nil {
		return "0"
	}
	return made.Value
}

// Several processes consume a queue that delivers messages twice, loses
// acknowledgements and restarts, with a service that throttles and cancels. Each
// message has one effect.
func TestEachMessageHasOneEffect(t *testing.T) {
	const messages, processes = 60, 3
	do := func(s *dynamostore.Store) inbox.Handler {
		return inbox.Tx(s, func(_ context.Context, tx *dynamostore.Tx, m *broker.Message) error {
			if rand.N(10) == 0 {
				return errors.New("failed, on purpose")
			}
			return count(tx, m.ID)
		})
	}
	batch := func(s *dynamostore.Store) inbox.Handler {
		return inbox.Batch(s, func(_ context.Context, tx *dynamostore.Tx, ms []*broker.Message) error {
			for _, m := range ms {
				if err := count(tx, m.ID); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for name, handler := range map[string]func(*dynamostore.Store) inbox.Handler{"each alone": do, "batches": batch} {
		t.Run(name, func(t *testing.T) {
			fake := new(dynamofake.Server)
			s, b := openShop(t, fake), membroker.New(nil)
			var ms []*broker.Message
			for i := range messages {
				ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: "orders"})
			}
			b.Duplicate(messages / 2)
			b.LoseAcks(messages / 4)
			source := b.Queue("orders")
			proof.Must(t, errors.Join(b.Publisher().Publish(t.Context(), ms)...))
			ctx, stop := context.WithCancel(proof.Soon(t))
			defer stop()
			stats := new(inbox.Stats)
			var running sync.WaitGroup
			for range processes {
				running.Go(func() {
					c := &inbox.Consumer{Name: "points", Source: source, Stats: stats, Handler: handler(s.open())}
					if err := c.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range 10 {
				fake.Refuse("ProvisionedThroughputExceededException", "TransactionConflictException")
				handled := stats.Handled.Load()
				proof.Await(t, "messages are handled", func() bool { return stats.Handled.Load() > handled || stats.Handled.Load() >= messages })
				if i == 5 {
					b.Restart()
				}
			}
			proof.Await(t, "every message is handled", func() bool {
				for _, m := range ms {
					rec, err := s.open().Get(ctx, once.Key{Operation: "points", ID: m.ID})
					if err != nil || rec.Status != once.Done {
						return false
					}
				}
				return true
			})
			stop()
			running.Wait()
			for _, m := range ms {
				if n := s.counted(t, m.ID); n != "1" {
					t.Errorf("message %s had %s effects", m.ID, n)
				}
			}
		})
	}
}

// A consumer of a log keeps a position for each partition, which commits together
// with the effects. Processes that follow one another handle each message once.
func TestPositionsCommitWithTheirMessages(t *testing.T) {
	const messages, partitions = 90, 3
	fake := new(dynamofake.Server)
	s, b := openShop(t, fake), membroker.New(nil)
	var ms []*broker.Message
	for i := range messages {
		ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: "orders", OrderingKey: fmt.Sprint(i % 10)})
	}
	source := b.Log("orders", "points", partitions)
	proof.Must(t, errors.Join(b.Publisher().Publish(t.Context(), ms)...))
	handled := func() (n int) {
		for _, m := range ms {
			if s.counted(t, m.ID) != "0" {
				n++
			}
		}
		return n
	}
	for _, until := range []int{1, messages / 2, messages} {
		ctx, stop := context.WithCancel(proof.Soon(t))
		var running sync.WaitGroup
		for range 2 {
			running.Go(func() {
				c := &inbox.Consumer{Name: "points", Source: source, Checkpoint: true, BatchSize: 4,
					Handler: inbox.Tx(s.open(), func(_ context.Context, tx *dynamostore.Tx, m *broker.Message) error {
						return count(tx, m.ID)
					})}
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		proof.Await(t, "messages are handled", func() bool {
			fake.Refuse("TransactionConflictException")
			return handled() >= until
		})
		stop()
		running.Wait()
	}
	for _, m := range ms {
		if n := s.counted(t, m.ID); n != "1" {
			t.Errorf("message %s had %s effects", m.ID, n)
		}
	}
	if all, err := s.open().Positions(t.Context(), "points"); err != nil || len(all) != partitions {
		t.Errorf("there are %d positions, %v", len(all), err)
	}
}

// A message that fails is set aside, and later ones of its ordering key wait for
// it. What fails for good is parked.
func TestFailedMessagesAreSetAside(t *testing.T) {
	s, b := openShop(t, new(dynamofake.Server)), membroker.New(nil)
	var mu sync.Mutex
	tries, order := make(map[string]int), []string(nil)
	shelf := s.open()
	c := &inbox.Consumer{Name: "points", Source: b.Queue("orders"), Handler: inbox.Tx(shelf,
		func(_ context.Context, tx *dynamostore.Tx, m *broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			switch tries[m.ID]++; {
			case m.ID == "poison":
				return once.Permanent(errors.New("poison"))
			case m.ID == "first" && tries[m.ID] < 3:
				return once.RetryAfter(10*time.Millisecond, errors.New("not yet"))
			}
			order = append(order, m.ID)
			return count(tx, m.ID)
		})}
	proof.Must(t, errors.Join(b.Publisher().Publish(t.Context(), []*broker.Message{
		{ID: "first", Topic: "orders", OrderingKey: "k"}, {ID: "second", Topic: "orders", OrderingKey: "k"},
		{ID: "poison", Topic: "orders"}})...))
	ctx, stop := context.WithCancel(proof.Soon(t))
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	proof.Await(t, "all are handled or parked", func() bool {
		parked, err := shelf.Shelved(ctx, store.ShelfQuery{Consumer: "points", States: []store.ShelfState{store.Parked}})
		return err == nil && len(parked) == 1 && s.counted(t, "second") == "1"
	})
	stop()
	running.Wait()
	if first, second := slices.Index(order, "first"), slices.Index(order, "second"); first < 0 || second < first {
		t.Errorf("they were handled in the order %q", order)
	}
	for id, want := range map[string]string{"first": "1", "second": "1", "poison": "0"} {
		if n := s.counted(t, id); n != want {
			t.Errorf("message %s had %s effects", id, n)
		}
	}
}
