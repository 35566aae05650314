package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/internal/fakesqs"
)

// sqsCarrier is an imitation of SQS.
func sqsCarrier(name string, fifo bool) carrier {
	return carrier{name: name, client: "aws-sdk-go-v2, a batch of 10", away: 10 * time.Millisecond, batch: sqsBatch,
		open: func(_ context.Context, away time.Duration) (*depot, error) { return openSQS(fifo, away) }}
}

func openSQS(fifo bool, away time.Duration) (*depot, error) {
	listener, err := listen()
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: &fakesqs.Server{PollSecond: 10 * time.Millisecond}}
	go func() { _ = server.Serve(listener) }()
	address, unroute, err := routed(listener.Addr().String(), away)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	near, far := dialSQS(listener.Addr().String()), dialSQS(address)
	d := &depot{publisher: sqsbroker.New(near, nil).Publisher()}
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "queue-" + newID()}
		var attributes map[string]string
		if fifo {
			q.topic, q.keys, attributes = q.topic+".fifo", 1000, map[string]string{"FifoQueue": "true"}
		}
		made, err := near.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &q.topic, Attributes: attributes})
		if err != nil {
			return nil, err
		}
		found, err := far.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &q.topic})
		if err != nil {
			return nil, err
		}
		q.source = sqsbroker.New(far, nil).Queue(q.topic)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return sqsLoop(ctx, far, found.QueueUrl, s.workers, handle)
		}
		q.drop = func() {
			_, _ = near.DeleteQueue(context.WithoutCancel(ctx), &sqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
		}
		return q, nil
	}
	d.close = func() {
		unroute()
		_ = server.Close()
	}
	return d, nil
}

func dialSQS(address string) *sqs.Client {
	url := "http://" + address
	return sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider("once", "once", "")})
}

// sqsBatch is the largest batch.
const sqsBatch = 10

// sqsLoop is what AWS recommends: long polls for ten messages, and deletions in
// batches, by several workers.
func sqsLoop(ctx context.Context, client *sqs.Client, url *string, workers int, handle handleBatch) error {
	return inWorkers(ctx, workers, func(ctx context.Context, _ int) error {
		got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: sqsBatch, WaitTimeSeconds: 5})
		if err != nil || len(got.Messages) == 0 {
			return err
		}
		var bodies [][]byte
		in := &sqs.DeleteMessageBatchInput{QueueUrl: url}
		for i, m := range got.Messages {
			bodies = append(bodies, []byte(*m.Body))
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
		}
		patient := context.WithoutCancel(ctx)
		if err := handle(patient, bodies); err != nil {
			return err
		}
		done, err := client.DeleteMessageBatch(patient, in)
		if err == nil && len(done.Failed) > 0 {
			err = fmt.Errorf("%d messages were not deleted", len(done.Failed))
		}
		return err
	})
}
