//go:build linux

package dynamostore

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/dynamostore"
)

func TestMain(m *testing.M) { killproof.Main(m, openPlace) }

// openPlace opens a store, and a table of lists, by a URL and the name that both
// tables begin with. A list is an item, to which transactions append.
func openPlace(address string) (*killproof.Place[*dynamostore.Tx], error) {
	url, name, ok := strings.Cut(address, " ")
	if !ok {
		return nil, fmt.Errorf("no URL and name: %q", address)
	}
	client, lists := dial(url), aws.String(name+"-lists")
	return &killproof.Place[*dynamostore.Tx]{
		Store: dynamostore.New(client, &dynamostore.Options{Table: name}),
		Note: func(_ context.Context, tx *dynamostore.Tx, list, entry string) error {
			one := &types.AttributeValueMemberL{Value: []types.AttributeValue{&types.AttributeValueMemberS{Value: entry}}}
			return tx.Update(types.Update{TableName: lists, Key: key(list),
				UpdateExpression:          aws.String("SET noted = list_append(if_not_exists(noted, :none), :one)"),
				ExpressionAttributeValues: map[string]types.AttributeValue{":one": one, ":none": &types.AttributeValueMemberL{Value: []types.AttributeValue{}}}})
		},
		Noted: func(ctx context.Context, list string) (all []string, err error) {
			out, err := client.GetItem(ctx, &dynamodb.GetItemInput{TableName: lists, Key: key(list), ConsistentRead: aws.Bool(true)})
			if err != nil {
				return nil, err
			}
			noted, _ := out.Item["noted"].(*types.AttributeValueMemberL)
			if noted == nil {
				return nil, nil
			}
			for _, v := range noted.Value {
				all = append(all, v.(*types.AttributeValueMemberS).Value)
			}
			return all, nil
		},
	}, nil
}

// makePlace creates the tables of openPlace.
func makePlace(t *testing.T, url string) (address string) {
	t.Helper()
	name := fmt.Sprint("kill-", time.Now().UnixNano())
	client := dial(url)
	proof.Must(t, dynamostore.New(client, &dynamostore.Options{Table: name}).CreateTable(t.Context()))
	createTable(t, client, name+"-lists")
	return url + " " + name
}

// Processes die while the index is behind, and the service throttles and cancels.
func TestKilledProcessesLoseNoMessage(t *testing.T) {
	var fake *dynamofake.Server
	killproof.Run(t, killproof.Setting[*dynamostore.Tx]{
		Make: func(t *testing.T) string {
			fake = &dynamofake.Server{Lag: 20 * time.Millisecond}
			server := httptest.NewServer(fake)
			t.Cleanup(server.Close)
			return makePlace(t, server.URL)
		},
		Open: openPlace,
		Disturb: func(*testing.T) {
			fake.Refuse("ProvisionedThroughputExceededException", "TransactionConflictException")
		},
	})
}

// Others have written moto.
func TestKilledProcessesLoseNoMessageOnMoto(t *testing.T) {
	url := testenv.DynamoDB(t)
	killproof.Run(t, killproof.Setting[*dynamostore.Tx]{
		Make: func(t *testing.T) string { return makePlace(t, url) },
		Open: openPlace,
		Slow: true,
	})
}
