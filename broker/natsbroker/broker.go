package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker/internal/answers"
	"github.com/effectively-once/once/broker/natsbroker/internal/parcel"
	"github.com/effectively-once/once/broker/natsbroker/internal/pull"
	"github.com/nats-io/nats.go/jetstream"
)

// lookUpTime is how long the server is asked for a stream or a consumer: it does not answer while there is no leader.
const lookUpTime = 5 * time.Second

// Options are the options of a Broker. The zero value works.
type Options struct {
	// DeadLetter is the subject that rejected messages are published to, with their ID, headers and body, and with the
	// headers Once-Reason, Once-Topic and Once-Origin. A stream other than the consumer's has to take it. Empty:
	// rejected messages are terminated at their consumer, with the reason in the server's advisory, and no copy is kept.
	DeadLetter string

	// UnconfirmedAcks lets Ack, Return and Reject return when their message was sent. What is lost on the way then comes
	// again after AckWait, without an error.
	UnconfirmedAcks bool

	// DuplicateWindow is what the streams that are published to are configured with. Zero: two minutes, the server's
	// default. Negative: they have none.
	DuplicateWindow time.Duration

	// ReplyWait is how long the confirmation of a message or a settlement is waited for, whatever the context allows,
	// because NATS may lose both a request and its answer in silence. Zero: 15 seconds.
	ReplyWait time.Duration
}

// Broker is JetStream in one account, as a connection sees it. It may be used concurrently.
type Broker struct {
	js      jetstream.JetStream
	options Options
}

// New returns a Broker that works through js, whose connection stays the caller's: it reconnects as that is configured,
// and is not closed here. A nil Options means the defaults.
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

// Publisher returns a publisher to whatever streams take the topics.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{requester: answers.NewRequester(b.js.Conn(), b.options.ReplyWait), window: b.options.DuplicateWindow}
}

// Consumer returns the messages of a durable pull consumer of a stream. Its deliveries have no positions, because what
// one session had out comes to another behind what is later in the stream. Open refuses one whose settings lose
// messages: it has to have AckPolicy explicit, no limit of deliveries, no BackOff (Return has the delays), no
// InactiveThreshold, whole messages and no priority groups. [Broker.DeclareConsumer] makes such a consumer.
func (b *Broker) Consumer(stream, durable string) broker.Source {
	return &source{Broker: b, stream: stream, durable: durable}
}

// DeclareConsumer makes a consumer of a stream that [Broker.Consumer] accepts, from the stream's first message on. With
// filters it is for these subjects only. One that is there already stays as it is. The stream has to be there.
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

// source is a consumer by its names.
type source struct {
	*Broker
	stream, durable string
}

var (
	_ broker.Horizon = (*source)(nil)
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
)

// Name tells consumers apart.
func (c *source) Name() string { return "nats stream " + c.stream + " consumer " + c.durable }

// RedeliveryHorizon is the MaxAge of the stream.
func (c *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	s, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return 0, c.explain(err)
	}
	return s.CachedInfo().Config.MaxAge, nil
}

// Location returns when the stream was created: no other stream of its name, in any account or cluster, has the same
// time.
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

// Lag is what the consumer has not delivered, and what is out. The age is that of the first message after what is
// acknowledged without a gap; a consumer with filters, of which that may not be one, has none.
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
	case !errors.Is(err, jetstream.ErrMsgNotFound): // it was deleted, or is just gone
		return lag, c.explain(err)
	}
	return lag, nil
}

// Open checks the consumer, and makes nothing.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if window < 1 {
		return nil, fmt.Errorf("%w: a window of %d: let at least one delivery be out", broker.ErrInvalid, window)
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
	s, err := c.open(is, window)
	if err != nil {
		return nil, c.explain(err)
	}
	return s, nil
}

// identity tells a consumer and its stream from others of their names.
type identity struct {
	stream  time.Time // when it was made
	created time.Time
	config  jetstream.ConsumerConfig
	doubt   uint64 // the last sequence that may have been delivered before, though the server has forgotten that
}

// identity looks the consumer up and checks its settings.
func (c *source) identity(ctx context.Context) (is identity, err error) {
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
	if what := pull.Unfit(&info.Config); what != "" {
		return is, fmt.Errorf("%w: %s %s", broker.ErrInvalid, c.Name(), what)
	}
	return is, nil
}

// checkDeadLetter finds out before the first rejection whether there is a place for it.
func (c *source) checkDeadLetter(ctx context.Context) error {
	subject := c.options.DeadLetter
	if subject == "" {
		return nil
	}
	if err := parcel.CheckSubject(subject); err != nil {
		return err
	}
	switch stream, err := c.js.StreamNameBySubject(ctx, subject); {
	case err != nil:
		return fmt.Errorf("natsbroker: look for a stream that takes the dead letters of %q: %w", subject, err)
	case stream == c.stream:
		return fmt.Errorf("%w: the dead letters of %q would go back to the stream %q: give them another stream",
			broker.ErrInvalid, subject, stream)
	}
	return nil
}

func (c *source) explain(err error) error {
	return fmt.Errorf("natsbroker: %s: %w", c.Name(), err)
}
