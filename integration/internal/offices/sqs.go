package offices

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once/internal/fakesqs"
)

// SQSServer is an imitation of SQS, which keeps its messages across restarts.
type SQSServer struct {
	Service *fakesqs.Server
	address string
	server  *http.Server
}

// StartSQS starts an imitation of SQS.
func StartSQS(t testing.TB) *SQSServer {
	t.Helper()
	s := &SQSServer{Service: &fakesqs.Server{PollSecond: 100 * time.Millisecond}, address: fmt.Sprintf("127.0.0.1:%d", FreePort(t))}
	OnItsPort(t, s.start)
	t.Cleanup(func() { _ = s.server.Close() })
	return s
}

// URL returns the endpoint.
func (s *SQSServer) URL() string { return "http://" + s.address }

func (s *SQSServer) start() error {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	s.server = &http.Server{Handler: s.Service}
	go s.server.Serve(listener)
	return nil
}

// Restart cuts all connections, and with them the requests that are being
// answered.
func (s *SQSServer) Restart(t testing.TB) {
	t.Helper()
	_ = s.server.Close() // of connections that are cut
	OnItsPort(t, s.start)
}

// DialSQS returns a client of an endpoint.
func DialSQS(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})})
}

// CreateQueue creates a queue.
func CreateQueue(t testing.TB, client *sqs.Client, queue string, attributes map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if _, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &queue, Attributes: attributes}); err != nil {
		t.Fatal(err)
	}
}
