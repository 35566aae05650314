package sqsbroker

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/fakesqs"
)

// A message is not renewed beyond 12 hours after it was received, which the
// service would refuse, and is not settled then.
func TestMessageIsLostAfterTwelveHours(t *testing.T) {
	t.Parallel() // most of it is waiting
	endpoint := httptest.NewServer(&fakesqs.Server{PollSecond: 30 * time.Millisecond})
	defer endpoint.Close()
	client := sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint.URL, Credentials: aws.AnonymousCredentials{}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String("orders")}); err != nil {
		t.Fatal(err)
	}
	b := New(client, &Options{Visibility: time.Hour})
	if errs := b.Publisher().Publish(ctx, []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "orders"}}); errs != nil {
		t.Fatal(errs)
	}
	opened, err := b.Queue("orders").Open(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close(ctx)
	var ds []broker.Delivery
	for len(ds) < 2 {
		more, err := opened.Receive(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, more...)
	}
	s, old, young := opened.(*session), ds[0].Tag.(*arrival), ds[1].Tag.(*arrival)
	s.mu.Lock()
	old.received = time.Now().Add(-12*time.Hour + time.Minute + 30*time.Minute)
	s.mu.Unlock()
	s.renew()
	s.mu.Lock()
	short, long := time.Until(old.until), time.Until(young.until)
	old.received = old.received.Add(-30 * time.Minute)
	s.mu.Unlock()
	if short > 30*time.Minute || short < 29*time.Minute || long < 59*time.Minute {
		t.Errorf("a message that was received 11.5 hours ago is hidden for %v, and a new one for %v", short, long)
	}
	s.renew()
	if err := s.Ack(ctx, ds[:1]); err == nil {
		t.Error("a message was settled 12 hours after it was received")
	}
	if err := s.Ack(ctx, ds[1:]); err != nil {
		t.Error(err)
	}
}
