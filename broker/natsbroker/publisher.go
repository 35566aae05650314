package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go"
)

// publisher publishes to the streams that take the subjects of messages.
type publisher struct {
	requester *requester
	window    time.Duration
}

var _ broker.Deduplicator = (*publisher)(nil)

// DeduplicationWindow returns Options.DuplicateWindow.
func (p *publisher) DeduplicationWindow() time.Duration { return max(p.window, 0) }

// Publish sends messages and waits for the streams to confirm them.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	var at []int // the indexes of the messages in out
	var out []*nats.Msg
	for i, m := range ms {
		msg, err := encode(m)
		if errs[i] = err; err == nil {
			at, out = append(at, i), append(out, msg)
		}
	}
	for i, err := range p.requester.publish(ctx, out) {
		errs[at[i]] = explainPublish(err)
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// Close ends the use of the publisher. The connection stays open, because it
// belongs to the caller.
func (p *publisher) Close() error {
	p.requester.close()
	return nil
}

// explainPublish marks the error of a message that is too large as
// [broker.ErrInvalid].
func explainPublish(err error) error {
	if err != nil && isTooLarge(err) {
		return fmt.Errorf("%w: the message is too large for the server or the stream: %w", broker.ErrInvalid, err)
	}
	return err
}
