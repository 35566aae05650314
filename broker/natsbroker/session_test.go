package natsbroker

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// gone is a server that cannot be reached.
type gone struct{}

func (gone) Dial(string, string) (net.Conn, error) { return nil, errors.New("refused") }

// A consumer opens another session and logs why, so a session must not wait for
// a server without end.
func TestASessionFailsIfTheServerStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
			nats.SetCustomDialer(gone{}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		c := &consumer{js: js, options: Options{ReplyWait: time.Second}, stream: "orders", durable: "billing"}
		s, err := c.open(identity{config: jetstream.ConsumerConfig{AckWait: time.Minute}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.WithoutCancel(t.Context()))
		time.Sleep(time.Hour) // nothing is asked of it, so it is not silent
		begun := time.Now()
		_, err = s.Receive(t.Context(), 1)
		if err == nil || !strings.Contains(err.Error(), "check that the servers run") {
			t.Errorf("Receive returned %v", err)
		}
		if took := time.Since(begun); took < silenceLimit || took > 2*silenceLimit {
			t.Errorf("Receive gave up after %v", took)
		}
	})
}
