package kafka

import "context"

type Message struct{ Key, Value []byte }

type Reader struct{}

func (*Reader) CommitMessages(ctx context.Context, ms ...Message) error { panic(0) }

type Writer struct{}

func (*Writer) WriteMessages(ctx context.Context, ms ...Message) error { panic(0) }
