package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/store"
)

// Sources makes sources of registered consumers, to ask them for their lag. It is
// safe for concurrent use.
type Sources struct {
	brokers []sourceMaker
	mute    []string // brokers whose sources have no lag, without passwords
}

// sourceMaker makes sources of one broker.
type sourceMaker struct {
	kind  string // first word of the names of its sources
	of    func(reader) broker.Source
	close func()
}

// lagSchemes are those of the brokers whose adapters know a lag. A client that is
// made connects again by itself whenever the broker is back.
var lagSchemes = map[string]func(context.Context, address) (sourceMaker, error){
	"nats": natsSources, "tls": natsSources, "kafka": kafkaSources, "amqp": rabbitSources, "amqps": rabbitSources,
	"redis": redisSources, "rediss": redisSources, "sqs": sqsSources, "servicebus": busSources, "eventhubs": hubsSources,
}

// OpenSources prepares the brokers of URLs. None needs to be reachable now. It adds
// the secrets of the URLs to the [secret.Set] of the context and keeps them out of
// errors. An error about a URL is an [ErrBroker].
func OpenSources(ctx context.Context, urls []string) (*Sources, error) {
	secrets := secret.From(ctx)
	s := new(Sources)
	for _, from := range urls {
		a, err := parse(from, secrets)
		if err == nil {
			err = s.add(ctx, a)
		}
		if err != nil {
			s.Close()
			return nil, secrets.Error(err)
		}
	}
	return s, nil
}

func (s *Sources) add(ctx context.Context, a address) error {
	open := lagSchemes[a.scheme]
	if open == nil {
		s.mute = append(s.mute, a.String())
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	m, err := open(ctx, a)
	if err == nil {
		s.brokers = append(s.brokers, m)
	}
	return err
}

// Mute returns the brokers that were named although their sources have no lag.
func (s *Sources) Mute() []string { return s.mute }

// Close ends all connections.
func (s *Sources) Close() {
	for _, b := range s.brokers {
		if b.close != nil {
			b.close()
		}
	}
}

// Of returns the source of a consumer at each broker that may have it. source is its
// text in the registry. It returns an error, which says why, if there is none.
func (s *Sources) Of(source string) (all []broker.Source, err error) {
	name, _ := store.SplitSource(source)
	kind, _, _ := strings.Cut(name, " ")
	r, ok := readerOf(store.Consumer{Source: source})
	switch {
	case !ok:
		return nil, errors.New("this program does not know such sources")
	case addressOf[kind] == "":
		return nil, errors.New("its broker does not count the messages of a consumer")
	}
	for _, b := range s.brokers {
		if b.kind != kind {
			continue
		}
		if of := b.of(r); of.Name() == name {
			all = append(all, of)
		}
	}
	if len(all) == 0 {
		err = fmt.Errorf("no address of its broker was given: %s", addressOf[kind])
	}
	return all, err
}

// addressOf says by kind of broker which address its lag needs. Others have none.
var addressOf = map[string]string{"nats": "nats://host:4222", "kafka": "kafka://host:9092", "redis": "redis://host:6379", "sqs": "sqs://region",
	"servicebus": "servicebus://namespace", "eventhubs": "eventhubs://namespace",
	"rabbitmq": "amqps://host:5671/vhost, as its management plugin is not asked"}

func natsSources(_ context.Context, a address) (m sourceMaker, err error) {
	o, urls, err := natsOptions(&a)
	if err != nil {
		return m, err
	}
	o = append(o, nats.Name("once console"), nats.Timeout(dialTime/2), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // the caller gets the error
	connection, err := nats.Connect(urls, o...)
	if err != nil {
		return m, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return m, err
	}
	b := natsbroker.New(js, nil)
	return sourceMaker{"nats", func(r reader) broker.Source {
		if r.log { // the registry does not have its filters
			return b.Log(r.of[0], r.as)
		}
		return b.Consumer(r.of[0], r.as)
	}, connection.Close}, nil
}

func kafkaSources(_ context.Context, a address) (m sourceMaker, err error) {
	o, err := kafkaOptions(&a)
	if err != nil {
		return m, err
	}
	o = append(o, kgo.ClientID("once-console"), kgo.RequestRetries(2))
	client, err := kgo.NewClient(o...)
	if err != nil {
		return m, refuse("write it as kafka://host:9092,host:9092")
	}
	client.Close() // each question has a client of its own
	b := kafkabroker.New(&kafkabroker.Options{Client: o})
	return sourceMaker{"kafka", func(r reader) broker.Source { return b.Topics(r.as, r.of...) }, nil}, nil
}

func rabbitSources(_ context.Context, a address) (m sourceMaker, err error) {
	at, err := amqpURL(a)
	if err != nil {
		return m, err
	}
	b := rabbitbroker.New(at, nil) // it connects for each question
	return sourceMaker{"rabbitmq", func(r reader) broker.Source { return b.Queue(r.of[0]) }, nil}, nil
}

func redisSources(_ context.Context, a address) (m sourceMaker, err error) {
	client, err := redisOf(a)
	if err != nil {
		return m, err
	}
	b := redisbroker.New(client, nil)
	return sourceMaker{"redis", func(r reader) broker.Source { return b.Group(r.of[0], r.as) }, func() { _ = client.Close() }}, nil
}

func sqsSources(ctx context.Context, a address) (m sourceMaker, err error) {
	loaded, _, err := awsOf(ctx, &a)
	if err != nil {
		return m, err
	}
	b := sqsbroker.New(sqs.NewFromConfig(loaded), nil)
	return sourceMaker{"sqs", func(r reader) broker.Source { return b.Queue(r.of[0]) }, nil}, nil
}

func busSources(_ context.Context, a address) (m sourceMaker, err error) {
	management, err := busManagement(a)
	if err != nil {
		return m, err
	}
	b := servicebusbroker.New(nil, &servicebusbroker.Options{Management: management}) // nobody opens its sources
	return sourceMaker{"servicebus", func(r reader) broker.Source {
		s := b.Queue(r.of[0])
		if at := strings.LastIndex(r.of[0], "/"); r.as == "subscription" && at >= 0 { // topics may have a / as well
			s = b.Subscription(r.of[0][:at], r.of[0][at+1:])
		}
		if r.dead {
			s = b.DeadLetters(s)
		}
		return s
	}, nil}, nil
}

func hubsSources(ctx context.Context, a address) (m sourceMaker, err error) {
	v, err := hubsOf(ctx, a)
	if err != nil {
		return m, err
	}
	o := &eventhubsbroker.Options{ConnectionString: v.connection}
	if v.connection == "" {
		o.Namespace, o.Credential = v.namespace, v.credential
	}
	b, err := eventhubsbroker.New(o) // it connects for each question
	if err != nil {
		return m, err
	}
	return sourceMaker{"eventhubs", func(r reader) broker.Source { return b.Log(r.of[0], r.as, nil) }, nil}, nil
}
