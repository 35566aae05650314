package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker/internal/conncut"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	connectLimit = 30 * time.Second // for a context without a deadline
	closeLimit   = 5 * time.Second
)

// link is a connection that a context can end. The calls of amqp091 take no
// context, and a write blocks while the broker does not read.
type link struct {
	*conncut.Conn
	amqp *amqp.Connection
}

// dialer opens connections.
type dialer struct {
	url    string
	config amqp.Config
}

// connect opens a connection.
func (d dialer) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	l, err := conncut.Wait(ctx, func() (*link, error) { return d.dial(ctx) }, func(l *link) { l.Cut() })
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return l, nil
}

// dial opens a connection. It closes it if ctx ends before dial returns.
func (d dialer) dial(ctx context.Context) (*link, error) {
	if _, err := amqp.ParseURI(d.url); err != nil {
		// The error is not included, because it may contain the password.
		return nil, fmt.Errorf("%w: the URL must look like amqp://user:password@host:5672/vhost", broker.ErrInvalid)
	}
	config := d.config
	config.Recovery = nil
	config.Properties = maps.Clone(config.Properties) // amqp091 writes to it
	if config.Properties == nil {
		config.Properties = amqp.NewConnectionProperties()
	}
	inner := config.Dial
	if inner == nil {
		inner = func(network, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}
	var l link
	config.Dial = func(network, address string) (net.Conn, error) {
		conn, err := inner(network, address)
		if err != nil {
			return nil, err
		}
		l.Conn = conncut.Wrap(ctx, conn)
		return l.Conn, nil
	}
	var err error
	if l.amqp, err = amqp.DialConfig(d.url, config); l.Conn == nil {
		return nil, err
	}
	if !l.Release() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.Cut()
		return nil, err
	}
	return &l, nil
}

func (l *link) isClosed() bool { return l.IsCut() || l.amqp.IsClosed() }

// close closes the connection, and cuts it if that takes too long.
func (l *link) close(ctx context.Context) error {
	deadline := time.Now().Add(closeLimit)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	stop := context.AfterFunc(ctx, l.Cut)
	defer stop()
	err := l.amqp.CloseDeadline(deadline)
	l.Cut()
	if err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("close the connection to RabbitMQ: %w", conncut.EndedBy(ctx, err))
	}
	return nil
}
