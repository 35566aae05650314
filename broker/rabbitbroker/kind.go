package rabbitbroker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

// noType is a type that no queue has, so that asking never declares a queue.
const noType = "no type"

// checkKind returns a [broker.ErrInvalid] if a queue would lose messages of a
// session that keeps every rule. AMQP tells what a queue is only in the errors of
// what it refuses, each of which RabbitMQ logs. If it does not answer as expected,
// consuming shows why.
func (l *link) checkKind(queue string) error {
	if l.amqp.Properties["product"] != "RabbitMQ" {
		return nil
	}
	if _, refused := l.ask(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}); refused {
		return nil // it does not exist, or is another connection's
	}
	// Only a stream knows where to begin. It has nothing to deliver from its end.
	taken, _ := l.ask(func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "", false, false, false, false, amqp.Table{"x-stream-offset": "next"})
		return err
	})
	if taken {
		return unfit(queue, "is a stream: a session would begin at its end, and skip messages that were not settled. Use a quorum queue")
	}
	// RabbitMQ compares these before the type. Without the right to configure the
	// queue, it does not tell.
	different := ""
	l.ask(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": noType})
		var exception *amqp.Error
		if errors.As(err, &exception) && exception.Code == amqp.PreconditionFailed {
			different = exception.Reason
		}
		return err
	})
	switch {
	case strings.Contains(different, "inequivalent arg 'durable'"):
		return unfit(queue, "is not durable, so it loses its messages when RabbitMQ restarts. Use a durable queue")
	case strings.Contains(different, "inequivalent arg 'auto_delete'"):
		return unfit(queue, "is deleted, with its messages, when its last session ends. Use one without auto-delete")
	}
	return nil
}

// ask calls f with a channel of its own. It returns whether RabbitMQ has done what
// f asks for, and whether it has refused that.
func (l *link) ask(f func(*amqp.Channel) error) (done, refused bool) {
	channel, err := l.amqp.Channel()
	if err != nil {
		return false, false
	}
	defer channel.Close() // with an error, it is closed
	err = f(channel)
	var exception *amqp.Error
	return err == nil, errors.As(err, &exception)
}

func unfit(queue, why string) error {
	return fmt.Errorf("%w: the queue %q %s, such as DeclareQueue makes", broker.ErrInvalid, queue, why)
}
