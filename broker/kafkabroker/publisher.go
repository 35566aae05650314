package kafkabroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
)

// publisher has a client of its own.
type publisher struct {
	client *kgo.Client
	err    error // why there is none
	closed atomic.Bool
}

// Close ends the client. What waits for a confirmation gets an error.
func (p *publisher) Close() error {
	if !p.closed.Swap(true) && p.client != nil {
		p.client.Close()
	}
	return nil
}

func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	rs := make([]*kgo.Record, len(ms))
	err := cmp.Or(p.err, context.Cause(ctx))
	if p.closed.Load() {
		err = desk.ErrClosed
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

// checkTopic knows the rule of Kafka, because clusters answer as if the topic only had to be made.
func checkTopic(m *broker.Message) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if m == nil || len(m.Topic) <= 249 && strings.Trim(m.Topic, letters) == "" && strings.Trim(m.Topic, ".") != "" {
		return nil
	}
	return fmt.Errorf("%w: the topic %q: up to 249 letters, digits, dots, dashes and underscores name one",
		broker.ErrInvalid, m.Topic)
}
