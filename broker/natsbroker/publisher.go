package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker/internal/answers"
	"github.com/effectively-once/once/broker/natsbroker/internal/parcel"
	"github.com/nats-io/nats.go"
)

type publisher struct {
	requester *answers.Requester
	window    time.Duration
}

var _ broker.Deduplicator = (*publisher)(nil)

// DeduplicationWindow is what the options say.
func (p *publisher) DeduplicationWindow() time.Duration { return max(p.window, 0) }

// Publish sends messages and waits for the streams to confirm them.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	var at []int // what is to be sent, as indexes
	var out []*nats.Msg
	for i, m := range ms {
		msg, err := parcel.Pack(m)
		if errs[i] = err; err == nil {
			at, out = append(at, i), append(out, msg)
		}
	}
	for i, err := range p.requester.Store(ctx, out) {
		errs[at[i]] = explainPublish(err)
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// Close ends the use of the publisher. The connection is the caller's.
func (p *publisher) Close() error {
	p.requester.Close()
	return nil
}

func explainPublish(err error) error {
	if err != nil && answers.IsTooLarge(err) {
		return fmt.Errorf("%w: the server or the stream takes no message as large as this one: %w", broker.ErrInvalid, err)
	}
	return err
}
