package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/dynamostore"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// databases returns the server on an imitation of each database.
func databases(t *testing.T) map[string]http.Handler {
	return map[string]http.Handler{"DynamoDB": routes(onDynamoDB(fakeDynamoDB(t))), "Cosmos DB": routes(onCosmosDB(fakeCosmosDB(t)))}
}

func fakeDynamoDB(t *testing.T) *dynamodb.Client {
	server := httptest.NewServer(new(dynamofake.Server))
	t.Cleanup(server.Close)
	client := dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
	must(t, dynamostore.New(client, nil).CreateTable(t.Context()))
	_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:   aws.String(paymentsTable),
		BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("customer"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("customer"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("id"), KeyType: types.KeyTypeRange}},
	})
	must(t, err)
	return client
}

func fakeCosmosDB(t *testing.T) *azcosmos.ContainerClient {
	server := fakecosmos.New()
	t.Cleanup(server.Close)
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	must(t, err)
	client, err := azcosmos.NewClientWithKey(server.URL, key, nil)
	must(t, err)
	ctx := context.Background()
	_, err = client.CreateDatabase(ctx, azcosmos.DatabaseProperties{ID: "shop"}, nil)
	must(t, err)
	database, err := client.NewDatabase("shop")
	must(t, err)
	forever := int32(-1)
	_, err = database.CreateContainer(ctx, azcosmos.ContainerProperties{ID: "payments", DefaultTimeToLive: &forever,
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/customer"}}}, nil)
	must(t, err)
	container, err := client.NewContainer("shop", "payments")
	must(t, err)
	return container
}

// send sends a request and returns the answer.
func send(t *testing.T, server, method, path, apiKey, key, body string) (status int, payment Payment) {
	r, err := http.NewRequestWithContext(t.Context(), method, server+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, payment
	}
	r.Header.Set("Api-Key", apiKey)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, payment
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	_ = json.Unmarshal(text, &payment) // problem documents have other fields
	return response.StatusCode, payment
}

func TestEachPaymentIsTakenOnce(t *testing.T) {
	for name, handler := range databases(t) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			var mu sync.Mutex
			ids := make(map[string]bool)
			var crowd sync.WaitGroup
			for range 16 {
				crowd.Go(func() {
					status, p := send(t, server.URL, "POST", "/payments", "alice-secret", "order-1", `{"cents":4999}`)
					if status != http.StatusCreated || p.Cents != 4999 {
						t.Errorf("a copy got %d, %+v", status, p)
					}
					mu.Lock()
					defer mu.Unlock()
					ids[p.ID] = true
				})
			}
			crowd.Wait()
			if len(ids) != 1 {
				t.Fatalf("the copies got the payments %v", ids)
			}
			var id string
			for id = range ids {
			}
			for _, c := range []struct {
				what, method, path, apiKey, key, body string
				status                                int
			}{
				{"another amount", "POST", "/payments", "alice-secret", "order-1", `{"cents":1}`, 422},
				{"no Idempotency-Key", "POST", "/payments", "alice-secret", "", `{"cents":1}`, 400},
				{"an unknown API key", "POST", "/payments", "guessed", "k1", `{"cents":1}`, 401},
				{"no amount", "POST", "/payments", "alice-secret", "k2", `{}`, 400},
				{"declined", "POST", "/payments", "alice-secret", "k3", `{"cents":10001}`, 402},
				{"declined again", "POST", "/payments", "alice-secret", "k3", `{"cents":10001}`, 402},
				{"another customer's, with the same key", "POST", "/payments", "bob-secret", "order-1", `{"cents":2}`, 201},
				{"the payment is shown", "GET", "/payments/" + id, "alice-secret", "", "", 200},
				{"not to others", "GET", "/payments/" + id, "bob-secret", "", "", 404},
				{"nor to strangers", "GET", "/payments/" + id, "", "", "", 401},
			} {
				if status, _ := send(t, server.URL, c.method, c.path, c.apiKey, c.key, c.body); status != c.status {
					t.Errorf("%s: %d", c.what, status)
				}
			}
		})
	}
}

// Only what was answered with 201 is stored.
func TestADeclinedPaymentLeavesNothing(t *testing.T) {
	client := fakeDynamoDB(t)
	server := httptest.NewServer(routes(onDynamoDB(client)))
	defer server.Close()
	for i, cents := range []int{1, 20_000, 2, 30_000} {
		send(t, server.URL, "POST", "/payments", "alice-secret", fmt.Sprint("k", i), fmt.Sprintf(`{"cents":%d}`, cents))
	}
	out, err := client.Query(t.Context(), &dynamodb.QueryInput{TableName: aws.String(paymentsTable),
		KeyConditionExpression:    aws.String("customer = :alice"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":alice": &types.AttributeValueMemberS{Value: "alice"}}})
	must(t, err)
	if len(out.Items) != 2 {
		t.Errorf("there are %d payments", len(out.Items))
	}
}
