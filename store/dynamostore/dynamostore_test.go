package dynamostore_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
	"github.com/effectively-once/once/store/storetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts a fake.
func serve(t testing.TB, fake *dynamofake.Server) (url string) {
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	return server.URL
}

// dial returns a client that repeats no requests, unless the options say so.
func dial(url string, options ...func(*dynamodb.Options)) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &url, Retryer: retry.NewStandard(),
		Credentials: credentials.NewStaticCredentialsProvider("once", "once", "")}, options...)
}

// withHTTP sends requests through c.
func withHTTP(c dynamodb.HTTPClient) func(*dynamodb.Options) {
	return func(o *dynamodb.Options) { o.HTTPClient = c }
}

// shop is a table of users' items.
type shop struct {
	client *dynamodb.Client
	table  string
}

func openShop(t testing.TB, client *dynamodb.Client, table string) *shop {
	t.Helper()
	_, err := client.CreateTable(context.Background(), &dynamodb.CreateTableInput{TableName: &table,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("name"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("name"), KeyType: types.KeyTypeHash}}})
	must(t, err)
	return &shop{client, table}
}

func (s *shop) key(name string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: name}}
}

// effect counts a name.
func (s *shop) effect(tx *dynamostore.Tx, name string) error {
	return tx.Update(types.Update{TableName: &s.table, Key: s.key(name),
		UpdateExpression: aws.String("SET made = if_not_exists(made, :none) + :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"},
			":none": &types.AttributeValueMemberN{Value: "0"}}})
}

func (s *shop) count(ctx context.Context, name string) (n int, err error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: s.key(name), ConsistentRead: aws.Bool(true)})
	if err != nil || out.Item == nil {
		return 0, err
	}
	_, err = fmt.Sscan(out.Item["made"].(*types.AttributeValueMemberN).Value, &n)
	return n, err
}

// harness connects the suite to a service with new tables.
func harness(t testing.TB, url string, o dynamostore.Options) storetest.TxHarness[*dynamostore.Tx] {
	client := dial(url)
	o.Table = "once-" + t.Name()
	s := openShop(t, client, "shop-"+t.Name())
	begins := dynamostore.New(client, &o)
	must(t, begins.CreateTable(context.Background()))
	return storetest.TxHarness[*dynamostore.Tx]{
		Open:        func(testing.TB) once.TxStore[*dynamostore.Tx] { return dynamostore.New(dial(url), &o) },
		ListsOpen:   true,
		Batched:     true,
		Slow:        true,
		MaxMessages: 40,
		MaxBody:     200 << 10,
		Expires:     true,
		LearnsTime:  true,
		ClaimsFirst: o.ClaimFirst,
		Begin:       func(context.Context) (*dynamostore.Tx, error) { return begins.Begin(), nil },
		Commit:      func(ctx context.Context, tx *dynamostore.Tx) error { return tx.Commit(ctx) },
		Rollback:    func(_ context.Context, tx *dynamostore.Tx) error { return tx.Rollback() },
		Effect:      func(_ context.Context, tx *dynamostore.Tx, name string) error { return s.effect(tx, name) },
		Count:       s.count,
		Damages:     damages(client, o.Table),
	}
}

func TestConformance(t *testing.T) {
	storetest.RunTx(t, harness(t, serve(t, new(dynamofake.Server)), dynamostore.Options{}))
}

func TestConformanceIfClaimsAreWrittenFirst(t *testing.T) {
	h := harness(t, serve(t, new(dynamofake.Server)), dynamostore.Options{ClaimFirst: true})
	h.NoOutbox = true
	storetest.RunTx(t, h)
}

// fill sets a stock.
func (s *shop) fill(name string, made int) error {
	_, err := s.client.PutItem(context.Background(), &dynamodb.PutItemInput{TableName: &s.table, Item: stock(name, made)})
	return err
}
