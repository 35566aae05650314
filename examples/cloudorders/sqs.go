package main

import (
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once/broker/sqsbroker"
)

// onSQS uses the queues orders.fifo and shipments.fifo. The group of a message is
// its ordering key.
func onSQS(client *sqs.Client) post {
	b := sqsbroker.New(client, nil)
	return post{orders: b.Queue("orders.fifo"), publisher: b.Publisher(), shipments: "shipments.fifo"}
}
