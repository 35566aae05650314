package jetstream

import "context"

type Msg interface {
	Ack() error
	Nak() error
	Data() []byte
}

type Publisher interface {
	Publish(ctx context.Context, subject string, payload []byte) error
}

type JetStream interface{ Publisher }
