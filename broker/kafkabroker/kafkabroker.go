package kafkabroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Options configures a Broker. The zero value uses a broker on this machine.
type Options struct {
	// Client configures the client: kgo.SeedBrokers, kgo.DialTLSConfig,
	// kgo.SASL, kgo.WithLogger and others, except options for commits, offsets
	// and the callbacks of rebalances. Options that the promises of this
	// package depend on override these. Default: 127.0.0.1:9092.
	Client []kgo.Opt

	// DeadLetter is the topic that rejected messages are written to, with the
	// headers "once-reason" and "once-origin". Default: none, rejected messages
	// are only settled.
	DeadLetter string

	// CommitEvery is the interval between commits of a session. Default: 100
	// milliseconds.
	CommitEvery time.Duration

	// GiveUpAfter is how long the client tries to send a record that it can still
	// cancel. It is at least a second. Default: 30 seconds.
	GiveUpAfter time.Duration

	// LargestHeld is the number of returned messages at which a session stops
	// receiving new ones. Default: 1000.
	LargestHeld int
}

// Broker creates publishers and sources of one cluster. It has no connection of
// its own.
type Broker struct {
	options Options
}

// New returns a Broker. A nil Options means the defaults.
func New(o *Options) *Broker {
	b := new(Broker)
	if o != nil {
		b.options = *o
	}
	b.options.CommitEvery = cmp.Or(b.options.CommitEvery, 100*time.Millisecond)
	b.options.GiveUpAfter = cmp.Or(b.options.GiveUpAfter, 30*time.Second)
	b.options.LargestHeld = cmp.Or(b.options.LargestHeld, 1000)
	return b
}

// Publisher returns a publisher with its own client. It connects on first use.
func (b *Broker) Publisher() broker.Publisher {
	client, err := b.options.client()
	return &publisher{client: client, err: err}
}

// Topics returns the messages of topics as a source for a consumer group. The
// topics must exist when a session is opened. Each session is a member of the
// group.
func (b *Broker) Topics(group string, topics ...string) broker.Source {
	topics = slices.Sorted(slices.Values(topics))
	return &source{options: &b.options, group: group, topics: slices.Compact(topics)}
}

// client creates a client. Later options override earlier ones, so must comes
// last.
func (o *Options) client(must ...kgo.Opt) (*kgo.Client, error) {
	opts := []kgo.Opt{kgo.ProducerLinger(0), kgo.UnknownTopicRetries(1), kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted())}
	opts = append(append(opts, o.Client...), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordDeliveryTimeout(o.GiveUpAfter))
	client, err := kgo.NewClient(append(opts, must...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: the options of the Kafka client: %w", broker.ErrInvalid, err)
	}
	return client, nil
}

type source struct {
	options *Options
	group   string
	topics  []string
}

var (
	_ broker.Horizon = (*source)(nil)
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
)

func (s *source) Name() string {
	return fmt.Sprintf("kafka topic %s group %s", strings.Join(s.topics, ","), s.group)
}

// Location returns the ID of the cluster.
func (s *source) Location(ctx context.Context) (map[string]string, error) {
	client, err := s.options.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	id, err := cluster.ID(ctx, client)
	return map[string]string{"cluster": id}, err
}

// Lag returns the number of offsets that the group has not committed. Kafka does
// not report ages.
func (s *source) Lag(ctx context.Context) (broker.Lag, error) {
	client, err := s.options.client()
	if err != nil {
		return broker.Lag{}, err
	}
	defer client.Close()
	behind, err := cluster.Lag(ctx, client, s.group, s.topics)
	return broker.Lag{Messages: behind}, err
}

// RedeliveryHorizon returns the longest retention of the topics. It includes the
// time that a segment takes to fill, because Kafka deletes a segment when its
// newest message is old enough.
func (s *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	client, err := s.options.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return cluster.Retention(ctx, client, s.topics)
}
