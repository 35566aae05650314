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

// Options are the options of a Broker. The zero value works with a broker on this machine.
type Options struct {
	// Client is how to reach the cluster: kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL, kgo.WithLogger and whatever else a
	// client of yours has, but nothing about commits, offsets, and what is called in a rebalance. What the promises of
	// this package rest on is set behind it. Default: 127.0.0.1:9092.
	Client []kgo.Opt

	// DeadLetter is the topic that rejected messages are written to, with the headers "once-reason" and "once-origin".
	// Default: none; what is rejected is only settled.
	DeadLetter string

	// CommitEvery is the shortest time between two commits of a session. Default 100 milliseconds.
	CommitEvery time.Duration

	// GiveUpAfter is how long the client tries to send a record, if it is sure that it can take it back; at least a
	// second. Default 30 seconds.
	GiveUpAfter time.Duration

	// LargestHeld is how many returned messages a session keeps. Default 1000.
	LargestHeld int
}

// Broker makes publishers and sources of one cluster. It holds no connection.
type Broker struct {
	options Options
}

// New returns a Broker. Nil means the defaults.
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

// Publisher returns a publisher with a client of its own. It connects when it is first used.
func (b *Broker) Publisher() broker.Publisher {
	client, err := b.options.client()
	return &publisher{client: client, err: err}
}

// Topics returns what a consumer group reads from topics. The topics must exist when a session opens. Each session is
// a member of the group.
func (b *Broker) Topics(group string, topics ...string) broker.Source {
	topics = slices.Sorted(slices.Values(topics))
	return &source{options: &b.options, group: group, topics: slices.Compact(topics)}
}

// client makes a client. Later options win, so the defaults come first and what must be comes last.
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

// Lag is how many offsets the group has not committed. Kafka tells no ages.
func (s *source) Lag(ctx context.Context) (broker.Lag, error) {
	client, err := s.options.client()
	if err != nil {
		return broker.Lag{}, err
	}
	defer client.Close()
	behind, err := cluster.Lag(ctx, client, s.group, s.topics)
	return broker.Lag{Messages: behind}, err
}

// RedeliveryHorizon is the longest retention of the topics. Kafka drops whole segments, when the newest message in them
// is old enough: so the time that a segment takes to fill is a part of it.
func (s *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	client, err := s.options.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return cluster.Kept(ctx, client, s.topics)
}
