//go:build linux

package brokers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitKind is a queue that somebody else has declared.
type rabbitKind struct {
	durable, autoDelete bool
	args                amqp.Table
	refused             string // in the error of Open; empty: it is taken
}

var rabbitKinds = map[string]rabbitKind{
	"stream": {durable: true, args: amqp.Table{"x-queue-type": "stream"}, refused: "is a stream"},
	"stream with limits": {durable: true, refused: "is a stream",
		args: amqp.Table{"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": int64(1 << 30)}},
	"transient":               {refused: "is not durable"},
	"auto-delete":             {durable: true, autoDelete: true, refused: "its last session"},
	"transient auto-delete":   {autoDelete: true, refused: "is not durable"},
	"classic":                 {durable: true},
	"classic by name":         {durable: true, args: amqp.Table{"x-queue-type": "classic"}},
	"lazy, with priorities":   {durable: true, args: amqp.Table{"x-queue-mode": "lazy", "x-max-priority": int8(5), "x-message-ttl": int32(3600000)}},
	"quorum":                  {durable: true, args: amqp.Table{"x-queue-type": "quorum"}},
	"quorum, single consumer": {durable: true, args: amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}},
	"quorum with limits": {durable: true, args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(4), "x-max-length": int32(100),
		"x-overflow": "reject-publish", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "it's dead", "x-dead-letter-strategy": "at-least-once"}},
}

// A queue that loses messages of sessions which keep every rule is refused when a
// session opens, and the others are taken as they are.
func TestRabbitRefusesQueuesThatLoseMessages(t *testing.T) {
	r := startRabbit(t)
	b := rabbitbroker.New(r.DSN(), nil)
	to := b.Publisher("")
	t.Cleanup(func() { _ = to.Close() })
	for name, kind := range rabbitKinds {
		t.Run(name, func(t *testing.T) {
			queue := fmt.Sprintf("once kind %d", r.names.Add(1))
			_, err := r.channel(t).QueueDeclare(queue, kind.durable, kind.autoDelete, false, false, kind.args)
			proof.Must(t, err)
			var ms []*broker.Message
			for i := range 3 {
				ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: queue})
			}
			publish(t, to, ms...)
			for range 2 {
				s, err := b.Queue(queue).Open(proof.Soon(t), 10)
				if kind.refused == "" {
					proof.Must(t, err)
					if ds := receive(t, s, 3); fmt.Sprint(ids(ds)) != "[0 1 2]" {
						t.Errorf("came %v", ids(ds))
					}
					proof.Must(t, s.Close(proof.Soon(t)))
					continue
				}
				if err == nil {
					_ = s.Close(proof.Soon(t))
				}
				if !errors.Is(err, broker.ErrInvalid) || !strings.Contains(err.Error(), kind.refused) || !strings.Contains(err.Error(), queue) {
					t.Errorf("the queue was not refused with %q: %v", kind.refused, err)
				}
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		for range 2 {
			if _, err := b.Queue("once missing").Open(proof.Soon(t), 10); err == nil || !strings.Contains(err.Error(), "404") {
				t.Errorf("a queue that does not exist: %v", err)
			}
		}
		if _, err := r.channel(t).QueueDeclarePassive("once missing", true, false, false, false, nil); err == nil {
			t.Error("asking has declared the queue")
		}
	})
}
