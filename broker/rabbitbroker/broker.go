package rabbitbroker

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/effectively-once/once/broker"
)

// Broker creates publishers and sources of a RabbitMQ. Each Publisher and each
// Session has its own connection, so that a publisher that is blocked by an alarm
// does not block acks. A Broker is safe for concurrent use.
type Broker struct {
	options Options
	dialer  dialer
}

// New returns a Broker for a URL such as "amqps://user:password@host:5671/vhost".
// It does not connect, so a wrong URL is an error of the first use. A nil Options
// means the defaults.
func New(url string, o *Options) *Broker {
	b := new(Broker)
	if o != nil {
		b.options = *o
	}
	b.options.MaxBody = cmp.Or(b.options.MaxBody, 16<<20)
	b.dialer = dialer{url: url, config: b.options.Config}
	return b
}

// Publisher returns a publisher to an exchange, which must exist. An empty name
// is the default exchange, where a Topic is the name of a queue. The publisher
// connects on first use, and again after it has lost the connection.
func (b *Broker) Publisher(exchange string) broker.Publisher { return b.publisher(exchange) }

func (b *Broker) publisher(exchange string) *publisher {
	return &publisher{dialer: b.dialer, maxBody: b.options.MaxBody, exchange: exchange, turn: make(chan struct{}, 1)}
}

// Queue returns a queue as a source. The queue must exist when a session is
// opened. The window of a session is at most 65,535. Open returns
// [broker.ErrInvalid] for a stream and, if the user may configure the queue, for
// one that is not durable or is deleted with its last session.
func (b *Broker) Queue(name string) broker.Source { return &source{broker: b, queue: name} }

type source struct {
	broker *Broker
	queue  string
}

var (
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
)

// Name returns "rabbitmq queue" and the name of the queue.
func (s *source) Name() string { return "rabbitmq queue " + s.queue }

// Location returns the name of the cluster and the virtual host. It opens a
// connection.
func (s *source) Location(ctx context.Context) (map[string]string, error) {
	l, err := s.broker.dialer.connect(ctx)
	if err != nil {
		return nil, err
	}
	cluster, _ := l.amqp.Properties["cluster_name"].(string)
	facts := map[string]string{"cluster": cluster, "vhost": l.amqp.Config.Vhost}
	_ = l.close(ctx) // the facts are known
	return facts, nil
}

// Lag returns the number of messages that are ready. RabbitMQ counts those in
// flight separately and does not report ages. Lag opens a connection.
func (s *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	l, err := s.broker.dialer.connect(ctx)
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
	_ = l.close(ctx) // the answer is known
	return lag, err
}

// Open connects and starts to consume.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if window < 1 || window > math.MaxUint16 {
		return nil, fmt.Errorf("%w: a window of %d: RabbitMQ takes 1 to %d", broker.ErrInvalid, window, math.MaxUint16)
	}
	dead := s.broker.options.DeadLetter
	if dead != nil && *dead == (DeadLetter{}) {
		return nil, fmt.Errorf("%w: Options.DeadLetter names neither an exchange nor a routing key, so that rejected "+
			"messages would come back", broker.ErrInvalid)
	}
	l, err := s.broker.dialer.connect(ctx)
	if err != nil {
		return nil, err
	}
	n := &session{name: s.Name(), queue: s.queue, options: s.broker.options, link: l, in: make(chan broker.Delivery, window), ended: make(chan struct{})}
	err = l.During(ctx, func() error {
		if err := l.checkKind(s.queue); err != nil {
			return err
		}
		return n.consume(window)
	})
	if err != nil {
		_ = l.close(ctx) // the first error is returned
		return nil, fmt.Errorf("consume %s: %w", s.Name(), err)
	}
	if dead != nil {
		n.dead = s.broker.publisher(dead.Exchange)
	}
	return n, nil
}
