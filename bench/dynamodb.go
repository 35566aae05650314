package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// dynamoDelay is the time that a request waits in the imitation of DynamoDB,
// which itself takes none: about what a write takes there.
const dynamoDelay = 4 * time.Millisecond

// dynamoStages hold the contests of the store in DynamoDB. They count requests
// more than anything else, because the service is an imitation.
func dynamoStages() (stages []stage) {
	for _, contest := range []struct {
		name     string
		variants func(*dynamoBench) []variant
	}{
		{"a duplicate", (*dynamoBench).duplicates},
		{"claim and complete", (*dynamoBench).works},
		{"guarded transaction", (*dynamoBench).transactions},
	} {
		stages = append(stages, stage{name: contest.name + ", imitation of DynamoDB", loads: workers(1, 8),
			open: func(ctx context.Context, _ *bench) (*arena, error) { return openDynamo(ctx, contest.variants) }})
	}
	return stages
}

type dynamoBench struct {
	client *dynamodb.Client
	store  *dynamostore.Store
	table  string
}

func openDynamo(ctx context.Context, variants func(*dynamoBench) []variant) (*arena, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fake := new(dynamofake.Server)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(dynamoDelay)
		fake.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	d := &dynamoBench{table: "answers", client: dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &url,
		Credentials: credentials.NewStaticCredentialsProvider("once", "once", "")})}
	d.store = dynamostore.New(d.client, nil)
	_, err = d.client.CreateTable(ctx, &dynamodb.CreateTableInput{TableName: &d.table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}}})
	if err == nil {
		err = d.store.CreateTable(ctx)
	}
	if err == nil {
		err = seedDuplicates(ctx, func(ctx context.Context, id string) error {
			return errors.Join(d.do(ctx, id), d.write(ctx, id, "attribute_not_exists(id)"), d.doTx(ctx, dynamoPay, id))
		})
	}
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return &arena{close: func() { _ = server.Close() }, contest: func(load) contest {
		return contest{unit: "piece of work", variants: variants(d)}
	}}, nil
}

var dynamoPay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func (d *dynamoBench) duplicates() []variant {
	return []variant{
		repeated("GetItem", func(ctx context.Context) error {
			_, err := d.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &d.table, Key: dynamoItem(someDuplicate())[0],
				ConsistentRead: aws.Bool(true)})
			return err
		}),
		repeated("Do, duplicate", func(ctx context.Context) error { return d.do(ctx, someDuplicate()) }),
		repeated("DoTx, duplicate", func(ctx context.Context) error { return d.doTx(ctx, dynamoPay, someDuplicate()) }),
	}
}

func (d *dynamoBench) works() []variant {
	return []variant{
		repeated("two conditional PutItem", func(ctx context.Context) error {
			id := newID()
			if err := d.write(ctx, id, "attribute_not_exists(id)"); err != nil {
				return err
			}
			return d.write(ctx, id, "attribute_exists(id)")
		}),
		repeated("Do", func(ctx context.Context) error { return d.do(ctx, newID()) }),
	}
}

func (d *dynamoBench) transactions() []variant {
	quick, first := *dynamoPay, dynamostore.New(d.client, &dynamostore.Options{ClaimFirst: true})
	quick.Speculative = true
	return []variant{
		repeated("TransactWriteItems", func(ctx context.Context) error {
			_, err := d.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{
				TransactItems: []types.TransactWriteItem{{Put: d.put(newID())}}})
			return err
		}),
		repeated("DoTx, Speculative", func(ctx context.Context) error { return d.doTx(ctx, &quick, newID()) }),
		repeated("DoTx", func(ctx context.Context) error { return d.doTx(ctx, dynamoPay, newID()) }),
		repeated("DoTx, ClaimFirst", func(ctx context.Context) error { return d.doTxOn(ctx, first, dynamoPay, newID()) }),
	}
}

func (d *dynamoBench) do(ctx context.Context, id string) error {
	_, err := once.Do(ctx, d.store, dynamoPay.For(id), func(context.Context, once.Key) (string, error) { return answer300, nil })
	return err
}

func (d *dynamoBench) doTx(ctx context.Context, op *once.Operation[string], id string) error {
	return d.doTxOn(ctx, d.store, op, id)
}

func (d *dynamoBench) doTxOn(ctx context.Context, s *dynamostore.Store, op *once.Operation[string], id string) error {
	_, err := once.DoTx(ctx, s, op.For("tx "+id), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return answer300, tx.Put(*d.put("tx " + id))
	})
	return err
}

// dynamoItem returns the key of an item, and the whole item.
func dynamoItem(id string) [2]map[string]types.AttributeValue {
	key := map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: id}}
	return [2]map[string]types.AttributeValue{key, {"id": key["id"], "answer": &types.AttributeValueMemberS{Value: answer300}}}
}

func (d *dynamoBench) put(id string) *types.Put {
	return &types.Put{TableName: &d.table, Item: dynamoItem(id)[1], ConditionExpression: aws.String("attribute_not_exists(id)")}
}

func (d *dynamoBench) write(ctx context.Context, id, condition string) error {
	_, err := d.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &d.table, Item: dynamoItem(id)[1], ConditionExpression: &condition})
	return err
}
