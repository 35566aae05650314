package rabbitbroker

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options are what can be chosen. The zero value is good.
type Options struct {
	// Config is how to connect: TLS, authentication, the name of the connection. What it leaves out is taken from the
	// URL, and the defaults are those of amqp091-go: a heartbeat of 10 seconds. Its Dial may choose among hosts.
	// Its Recovery is not used.
	Config amqp.Config

	// DeadLetter is where rejected messages are published to. Default: nowhere, it is left to the queue.
	DeadLetter *DeadLetter

	// QueueDeadLetters says that the queues have an x-dead-letter-exchange, which cannot be asked over AMQP.
	QueueDeadLetters bool

	// MaxBody is how many bytes a body may have. A larger one is broker.ErrInvalid, because RabbitMQ would break the
	// channel, and with it what is published beside it. Default: 16 MiB, which is the max_message_size of RabbitMQ 4.
	MaxBody int
}

// DeadLetter is a place for rejected messages.
type DeadLetter struct {
	Exchange   string // empty: the default exchange, whose routing keys are names of queues
	RoutingKey string // empty: the one that the message came with
}

// Broker is a RabbitMQ. It holds no connection: each Publisher and each Session has one of its own, so that a publisher
// who is held up by an alarm holds up nobody's acks. All methods may be called concurrently.
type Broker struct {
	url     string
	options Options
}

// New returns the broker at a URL, like "amqps://user:password@host:5671/vhost". Nothing is connected yet: a URL that
// is wrong is an error of the first use. Nil options are the defaults.
func New(url string, o *Options) *Broker {
	b := &Broker{url: url}
	if o != nil {
		b.options = *o
	}
	b.options.MaxBody = cmp.Or(b.options.MaxBody, 16<<20)
	return b
}

// Publisher returns a publisher to an exchange, which must exist; empty is the default exchange, where a Topic is the
// name of a queue. It connects when it is first used, and again when it has lost the connection.
func (b *Broker) Publisher(exchange string) broker.Publisher { return b.publisher(exchange) }

func (b *Broker) publisher(exchange string) *publisher {
	return &publisher{broker: b, exchange: exchange, turn: make(chan struct{}, 1)}
}

// Queue returns a queue as a source. The queue must exist when a session is opened. The window of a session is at most
// 65,535.
func (b *Broker) Queue(name string) broker.Source { return &source{broker: b, queue: name} }

type source struct {
	broker *Broker
	queue  string
}

var (
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
)

// Name is "rabbitmq queue" and the name of the queue.
func (s *source) Name() string { return "rabbitmq queue " + s.queue }

// Location returns the name of the cluster and the virtual host. It makes a connection.
func (s *source) Location(ctx context.Context) (map[string]string, error) {
	l, err := s.broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	cluster, _ := l.amqp.Properties["cluster_name"].(string)
	facts := map[string]string{"cluster": cluster, "vhost": l.amqp.Config.Vhost}
	_ = l.close(ctx) // what was asked for is told
	return facts, nil
}

// Lag is how many messages are ready: RabbitMQ counts those that are out elsewhere, and tells no ages. It makes a connection.
func (s *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	l, err := s.broker.connect(ctx)
	if err != nil {
		return lag, err
	}
	err = l.During(ctx, func() error {
		channel, err := l.amqp.Channel()
		if err != nil {
			return err
		}
		queue, err := channel.QueueDeclarePassive(s.queue, false, false, false, false, nil)
		lag.Messages = int64(queue.Messages)
		return err
	})
	if err != nil {
		err = fmt.Errorf("ask for the lag of %s: %w", s.Name(), err)
	}
	_ = l.close(ctx) // what was asked for is told
	return lag, err
}

// Open connects and begins to consume.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if window < 1 || window > math.MaxUint16 {
		return nil, fmt.Errorf("%w: a window of %d: RabbitMQ takes 1 to %d", broker.ErrInvalid, window, math.MaxUint16)
	}
	dead := s.broker.options.DeadLetter
	if dead != nil && *dead == (DeadLetter{}) {
		return nil, fmt.Errorf("%w: Options.DeadLetter names neither an exchange nor a routing key, so that rejected "+
			"messages would come back", broker.ErrInvalid)
	}
	l, err := s.broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	n := &session{source: s, link: l, in: make(chan broker.Delivery, window), ended: make(chan struct{})}
	if err := l.During(ctx, func() error { return n.consume(window) }); err != nil {
		_ = l.close(ctx) // what is told is why it is of no use
		return nil, fmt.Errorf("consume %s: %w", s.Name(), err)
	}
	if dead != nil {
		n.dead = s.broker.publisher(dead.Exchange)
	}
	return n, nil
}
