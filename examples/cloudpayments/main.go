// Command cloudpayments is a payment server like examples/payments, with its
// payments in DynamoDB or in Azure Cosmos DB. The handlers are the same: what
// differs is how a payment is added and read. One request to the database holds
// the payment, the key and the answer.
//
// With tables once and payments, and the configuration of the AWS command line:
//
//	go run ./examples/cloudpayments -serve :8080
//
// With the container payments of the database shop, whose partition key is
// /customer, with a time to live of -1 by default:
//
//	COSMOS_CONNECTION='AccountEndpoint=…' go run ./examples/cloudpayments -serve :8080
//
// To pay, as often as you like:
//
//	curl -i localhost:8080/payments -H 'Api-Key: alice-secret' -H 'Idempotency-Key: "order-1"' -d '{"cents":4999}'
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

func main() {
	address := flag.String("serve", "127.0.0.1:8080", "serve at this address")
	flag.Parse()
	handler, err := open(context.Background(), os.Getenv("COSMOS_CONNECTION"))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *address, Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// open returns the server on Cosmos DB, or on DynamoDB without a connection
// string.
func open(ctx context.Context, connection string) (http.Handler, error) {
	if connection == "" {
		c, err := config.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, err
		}
		return routes(onDynamoDB(dynamodb.NewFromConfig(c))), nil
	}
	client, err := azcosmos.NewClientFromConnectionString(connection, nil)
	if err != nil {
		return nil, err
	}
	container, err := client.NewContainer("shop", "payments")
	if err != nil {
		return nil, err
	}
	return routes(onCosmosDB(container)), nil
}
