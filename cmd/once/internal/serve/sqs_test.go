package serve

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/internal/fakesqs"
)

func TestQueuesAndTopicsArePublishedTo(t *testing.T) {
	service := new(fakesqs.Server)
	endpoint := httptest.NewServer(service)
	defer endpoint.Close()
	client := sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint.URL, Credentials: aws.AnonymousCredentials{}})
	if _, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("orders")}); err != nil {
		t.Fatal(err)
	}
	service.CreateTopic("news")
	service.Subscribe("news", "orders", false)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	for i, c := range []struct {
		section SQS
		m       broker.Message
	}{
		{SQS{Region: fakesqs.Region, Endpoint: endpoint.URL}, broker.Message{ID: "1", Topic: "orders"}},
		{SQS{Region: fakesqs.Region, Endpoint: endpoint.URL, Unordered: true}, broker.Message{ID: "2", Topic: "orders", OrderingKey: "k"}},
		{SQS{Region: fakesqs.Region, Endpoint: endpoint.URL, Topics: "arn:aws:sns:" + fakesqs.Region + ":" + fakesqs.Account + ":"}, broker.Message{ID: "3", Topic: "news"}},
	} {
		p, err := (&Config{SQS: &c.section}).publisher(new(secret.Set))
		if err != nil {
			t.Fatal(err)
		}
		if errs := p.Publish(context.Background(), []*broker.Message{&c.m}); errs != nil || service.Count("orders") != i+1 {
			t.Errorf("message %s: %v; the queue has %d messages", c.m.ID, errs, service.Count("orders"))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
