package history

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// If a service tells its time in whole seconds, a lease may last for two of them
// longer: the process that writes it and the one that reads it may each be apart
// by one from the service. Rounds with pauses that long run beside each other.
const (
	longLease  = 500 * time.Millisecond
	longPause  = 3 * time.Second
	manyRounds = 12
)

// dynamoPlace is a table of the imitation of this repository.
func dynamoPlace(t testing.TB) *place {
	fake := new(dynamofake.Server)
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	dial := func(l *line) *dynamodb.Client {
		return dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &server.URL, HTTPClient: l,
			Credentials: credentials.NewStaticCredentialsProvider("once", "once", ""),
			Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts, o.MaxBackoff = 2, time.Millisecond
				o.Retryables = []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
					return aws.BoolTernary(l.repeats && isCut(err))
				})}
			})})
	}
	plain := dial(new(line))
	proof.Must(t, dynamostore.New(plain, nil).CreateTable(t.Context()))
	_, err := plain.CreateTable(t.Context(), &dynamodb.CreateTableInput{TableName: aws.String(dynamoTable),
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("name"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("name"), KeyType: types.KeyTypeHash}}})
	proof.Must(t, err)
	elsewhere := newLedger()
	p := &place{collects: true, resolution: time.Second, brief: longLease, longest: longPause, beside: manyRounds, units: 3, expire: func() { fake.Expire() }, open: func(claimFirst bool) (*process, error) {
		l := newLine(longPause)
		s := dynamostore.New(dial(l), &dynamostore.Options{ClaimFirst: claimFirst})
		is := newProcess(once.TxStore[*dynamostore.Tx](s), &dialect[*dynamostore.Tx]{
			begin: func(context.Context) (*dynamostore.Tx, error) { return s.Begin(), nil },
			write: func(_ context.Context, of *dynamostore.Tx, k once.Key, value int64) error {
				return of.Update(dynamoEffect(k, value))
			},
			commit:   func(ctx context.Context, of *dynamostore.Tx) error { return of.Commit(ctx) },
			rollback: func(_ context.Context, of *dynamostore.Tx) error { return of.Rollback() },
		}, apart{elsewhere, dynamoEffects{plain}})
		is.line = l
		return is, nil
	}}
	return p.withVeteran(t)
}

const dynamoTable = "effects"

// dynamoEffect counts an effect, and keeps its value.
func dynamoEffect(k once.Key, value int64) types.Update {
	number := func(n int64) types.AttributeValue { return &types.AttributeValueMemberN{Value: fmt.Sprint(n)} }
	return types.Update{TableName: aws.String(dynamoTable), Key: dynamoName(k),
		UpdateExpression:          aws.String("SET made = if_not_exists(made, :none) + :one, latest = :value"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":none": number(0), ":one": number(1), ":value": number(value)}}
}

func dynamoName(k once.Key) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: nameOf(k)}}
}

// dynamoEffects are items.
type dynamoEffects struct{ *dynamodb.Client }

func (e dynamoEffects) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	got, err := e.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String(dynamoTable), Key: dynamoName(k), ConsistentRead: aws.Bool(true)})
	if err != nil || len(got.Item) == 0 {
		return 0, 0, err
	}
	for name, to := range map[string]*int64{"made": &n, "latest": &value} {
		is, ok := got.Item[name].(*types.AttributeValueMemberN)
		if !ok {
			return 0, 0, fmt.Errorf("the item of %v has no number %s", k, name)
		}
		if _, err := fmt.Sscan(is.Value, to); err != nil {
			return 0, 0, err
		}
	}
	return n, value, nil
}
