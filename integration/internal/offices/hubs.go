package offices

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/internal/fakeamqp"
)

// StartHubs starts an imitation of Event Hubs in this process.
func StartHubs(t testing.TB) *fakeamqp.Server {
	t.Helper()
	s, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// DialHubs returns the hubs at a connection string. Leases are short, so that the
// partitions of a killed process move soon.
func DialHubs(connection string) (*eventhubsbroker.Broker, error) {
	return eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: connection, Lease: time.Second, HandOver: 2 * time.Second})
}
