package kafkabroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
)

// publisher publishes through its own client.
type publisher struct {
	client *kgo.Client
	err    error // of creating the client
	closed atomic.Bool
}

// Close closes the client. Messages that wait for a confirmation fail.
func (p *publisher) Close() error {
	if !p.closed.Swap(true) && p.client != nil {
		p.client.Close()
	}
	return nil
}

// Publish produces messages and waits for their confirmations.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	rs := make([]*kgo.Record, len(ms))
	err := cmp.Or(p.err, context.Cause(ctx))
	if p.closed.Load() {
		err = inflight.ErrClosed
	}
	for i, m := range ms {
		if errs[i] = cmp.Or(m.Check(), checkTopic(m), err); errs[i] == nil {
			rs[i] = encode(m)
		}
	}
	for i, err := range cluster.Write(ctx, p.client, rs) {
		errs[i] = cmp.Or(errs[i], err)
	}
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return nil
	}
	return errs
}

// checkTopic checks the name of a topic, because clusters report an invalid name
// as a topic that does not exist.
func checkTopic(m *broker.Message) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if m == nil || len(m.Topic) <= 249 && strings.Trim(m.Topic, letters) == "" && strings.Trim(m.Topic, ".") != "" {
		return nil
	}
	return fmt.Errorf("%w: the topic %q: a name has up to 249 letters, digits, dots, dashes and underscores",
		broker.ErrInvalid, m.Topic)
}
