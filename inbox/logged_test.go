//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

// dead is a source of a broker that is down.
type dead struct{ broker.Source }

func (dead) Name() string { return "orders" }

func (dead) Open(context.Context, int) (broker.Session, error) {
	return nil, errors.New("connection refused")
}

// TestADeadBrokerIsLoggedByDefault: without a Logger, whoever runs a consumer
// hears at once that nothing comes, and then once in a minute at most.
func TestADeadBrokerIsLoggedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := logtest.Default(t)
		c := &inbox.Consumer{Name: "billing", Source: dead{}, Handler: inbox.Tx(memstore.New(nil),
			func(context.Context, *memstore.Tx, *broker.Message) error { return nil })}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Millisecond)
		const message = "inbox: nothing can be received; trying again"
		if n := strings.Count(logged.String(), message); n != 1 {
			t.Errorf("%d lines at once: %s", n, logged)
		}
		time.Sleep(time.Hour)
		stop()
		<-ended
		if n := strings.Count(logged.String(), message); n < 2 || n > 61 {
			t.Errorf("%d lines after an hour: %s", n, logged)
		}
	})
}
