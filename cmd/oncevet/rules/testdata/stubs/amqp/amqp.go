package amqp091

import "context"

type Publishing struct{ Body []byte }

type Delivery struct {
	DeliveryTag uint64
	MessageId   string
	Body        []byte
}

func (d Delivery) Ack(multiple bool) error           { panic(0) }
func (d Delivery) Nack(multiple, requeue bool) error { panic(0) }

type Channel struct{}

func (*Channel) PublishWithContext(ctx context.Context, exchange, key string, mandatory, immediate bool, msg Publishing) error {
	panic(0)
}
func (*Channel) Ack(tag uint64, multiple bool) error { panic(0) }
