package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go/jetstream"
)

// Broker is JetStream in one account, as seen by a connection. It is safe for
// concurrent use.
type Broker struct {
	js      jetstream.JetStream
	options Options
}

// New returns a Broker that uses js. The connection of js belongs to the caller,
// who configures how it reconnects and closes it. A nil Options means the
// defaults.
func New(js jetstream.JetStream, o *Options) *Broker {
	b := &Broker{js: js}
	if o != nil {
		b.options = *o
	}
	if b.options.ReplyWait <= 0 {
		b.options.ReplyWait = 15 * time.Second
	}
	if b.options.DuplicateWindow == 0 {
		b.options.DuplicateWindow = 2 * time.Minute
	}
	return b
}

// Publisher returns a publisher to all streams that take the topics of messages.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{requester: newRequester(b.js.Conn(), b.options.ReplyWait), window: b.options.DuplicateWindow}
}

// Consumer returns the messages of a durable pull consumer of a stream. Its
// deliveries have no positions, because JetStream redelivers the messages of a
// session after later ones. Open fails if the settings of the consumer lose
// messages: it needs the AckPolicy explicit, whole messages, and neither a limit
// of deliveries, a BackOff (Return has the delays), an InactiveThreshold nor
// priority groups. [Broker.DeclareConsumer] creates one.
func (b *Broker) Consumer(stream, durable string) broker.Source {
	return &source{&consumer{js: b.js, options: b.options, stream: stream, durable: durable}}
}

// DeclareConsumer creates a consumer that [Broker.Consumer] accepts. It starts at
// the first message of the stream. With filters it gets the messages of these
// subjects only. An existing consumer is not changed. The stream must exist.
func (b *Broker) DeclareConsumer(ctx context.Context, stream, durable string, filters ...string) error {
	_, err := b.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:        durable,
		AckPolicy:      jetstream.AckExplicitPolicy,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		MaxDeliver:     -1,
		FilterSubjects: filters,
	})
	if err != nil && !errors.Is(err, jetstream.ErrConsumerExists) {
		return fmt.Errorf("natsbroker: declare the consumer %q of the stream %q: %w", durable, stream, err)
	}
	return nil
}

// source opens sessions of a consumer.
type source struct{ *consumer }

var (
	_ broker.Horizon = (*source)(nil)
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
)

// RedeliveryHorizon returns the MaxAge of the stream.
func (c *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	s, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return 0, c.explain(err)
	}
	return s.CachedInfo().Config.MaxAge, nil
}

// Location returns the time at which the stream was created. No other stream of
// its name, in any account or cluster, has the same time.
func (c *source) Location(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	s, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return nil, c.explain(err)
	}
	return location(s.CachedInfo()), nil
}

func location(stream *jetstream.StreamInfo) map[string]string {
	return map[string]string{"created": stream.Created.UTC().Format("20060102T150405.000000000Z")}
}

// Lag returns the number of messages that the consumer has not delivered or that
// are in flight. The age is that of the first message after those that are
// acknowledged without a gap. It is unknown if the consumer has filters, because
// that message may not match them.
func (c *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return lag, c.explain(err)
	}
	consumer, err := stream.Consumer(ctx, c.durable)
	if err != nil {
		return lag, c.explain(err)
	}
	info := consumer.CachedInfo()
	lag.Messages = int64(info.NumPending) + int64(info.NumAckPending)
	if lag.Messages == 0 || info.Config.FilterSubject != "" || len(info.Config.FilterSubjects) > 0 {
		return lag, nil
	}
	first := max(info.AckFloor.Stream+1, stream.CachedInfo().State.FirstSeq)
	switch m, err := stream.GetMsg(ctx, first); {
	case err == nil:
		lag.Oldest = max(time.Since(m.Time), 0)
	case !errors.Is(err, jetstream.ErrMsgNotFound): // it may have been deleted meanwhile
		return lag, c.explain(err)
	}
	return lag, nil
}

// Open checks the settings of the consumer. It creates nothing.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if window < 1 {
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	is, err := c.identity(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.checkDeadLetter(ctx); err != nil {
		return nil, err
	}
	s, err := c.consumer.open(is, window)
	if err != nil {
		return nil, c.explain(err)
	}
	return s, nil
}
