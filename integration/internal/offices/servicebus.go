package offices

import (
	"context"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/internal/fakeamqp"
)

// StartServiceBus starts an imitation of Azure Service Bus in this process, with
// queues whose locks last a second.
func StartServiceBus(t testing.TB, sessions bool, queues ...string) *fakeamqp.Server {
	t.Helper()
	s, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, name := range queues {
		s.CreateQueue(name, fakeamqp.QueueOptions{LockDuration: time.Second, MaxDelivery: 1000, Sessions: sessions})
	}
	return s
}

// DialServiceBus returns a broker, and what closes its client.
func DialServiceBus(connection string, sessions bool) (*servicebusbroker.Broker, func(), error) {
	client, err := azservicebus.NewClientFromConnectionString(connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 5, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond}})
	if err != nil {
		return nil, nil, err
	}
	b := servicebusbroker.New(client, &servicebusbroker.Options{Sessions: sessions, SessionIdle: 20 * time.Millisecond})
	return b, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Close(ctx)
	}, nil
}
