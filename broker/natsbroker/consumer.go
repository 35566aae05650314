package natsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go/jetstream"
)

// lookUpTime limits the look-up of a stream or a consumer. The server does not
// answer while there is no leader.
const lookUpTime = 5 * time.Second

// Options configures a Broker. The zero value is valid.
type Options struct {
	// DeadLetter is the subject that rejected messages are published to, with
	// their ID, headers and body, and with the headers Once-Reason, Once-Topic
	// and Once-Origin. A stream other than the consumer's must take it. If it
	// is empty, rejected messages are terminated with the reason in the
	// server's advisory, and no copy is kept.
	DeadLetter string

	// UnconfirmedAcks makes Ack, Return and Reject return without waiting for the
	// server. If a settlement is lost, its message is delivered again after
	// AckWait, without an error.
	UnconfirmedAcks bool

	// DuplicateWindow is the duplicate window of the streams that are published
	// to. Default: two minutes, the default of the server. A negative value
	// means that they have none.
	DuplicateWindow time.Duration

	// ReplyWait limits the wait for the confirmation of a message or a
	// settlement, because NATS may silently lose a request or its reply.
	// Default: 15 seconds.
	ReplyWait time.Duration
}

// consumer is a consumer of a stream, by its names.
type consumer struct {
	js              jetstream.JetStream
	options         Options
	stream, durable string
}

// Name returns the names of the stream and the consumer.
func (c *consumer) Name() string { return "nats stream " + c.stream + " consumer " + c.durable }

// identity distinguishes a consumer and its stream from others with their names.
type identity struct {
	stream  time.Time // when the stream was created
	created time.Time // when the consumer was created
	config  jetstream.ConsumerConfig
	doubt   uint64 // the last sequence whose delivery the server may have forgotten
}

// identity looks the consumer up and checks its settings.
func (c *consumer) identity(ctx context.Context) (is identity, err error) {
	stream, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return is, c.explain(err)
	}
	consumer, err := stream.Consumer(ctx, c.durable)
	if err != nil {
		return is, c.explain(err)
	}
	about, info := stream.CachedInfo(), consumer.CachedInfo()
	is.stream, is.created, is.config = about.Created, info.Created, info.Config
	is.doubt = about.State.LastSeq
	if what := unfit(&info.Config); what != "" {
		return is, fmt.Errorf("%w: %s %s", broker.ErrInvalid, c.Name(), what)
	}
	return is, nil
}

// checkDeadLetter checks that a stream takes the dead letters, before the first
// rejection.
func (c *consumer) checkDeadLetter(ctx context.Context) error {
	subject := c.options.DeadLetter
	if subject == "" {
		return nil
	}
	if err := checkSubject(subject); err != nil {
		return err
	}
	switch stream, err := c.js.StreamNameBySubject(ctx, subject); {
	case err != nil:
		return fmt.Errorf("natsbroker: find a stream that takes the dead letters of %q: %w", subject, err)
	case stream == c.stream:
		return fmt.Errorf("%w: the dead letters of %q would go back to the stream %q: give them another stream",
			broker.ErrInvalid, subject, stream)
	}
	return nil
}

// explain adds the name of the consumer to an error.
func (c *consumer) explain(err error) error {
	return fmt.Errorf("natsbroker: %s: %w", c.Name(), err)
}
