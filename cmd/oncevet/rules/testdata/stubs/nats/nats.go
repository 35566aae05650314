package nats

type Msg struct{ Data []byte }

func (*Msg) Ack() error { panic(0) }

type Conn struct{}

func (*Conn) Publish(subject string, data []byte) error { panic(0) }
