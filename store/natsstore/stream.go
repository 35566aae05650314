package natsstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/nats-io/nats.go/jetstream"
)

// streamName is the name of the stream, by which NATS knows it as a bucket.
func (b *bucket) streamName() string { return "KV_" + b.name }

func (b *bucket) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              b.streamName(),
		Description:       "Keys of effectively-once processing",
		Subjects:          []string{b.subject(">")},
		MaxMsgsPerSubject: 1,
		AllowMsgTTL:       true,
		Replicas:          b.replicas,
	}
}

func (b *bucket) create(ctx context.Context) error {
	if b.invalid != nil {
		return b.invalid
	}
	err := b.ask(ctx)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	if _, err := b.js.CreateStream(ctx, b.config()); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("natsstore: create the stream %s: %w", b.streamName(), err)
	}
	return b.ask(ctx)
}

// ask learns the time of the stream's leader, and checks the stream.
func (b *bucket) ask(ctx context.Context) error {
	if b.invalid != nil {
		return b.invalid
	}
	sent := time.Now()
	stream, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return b.js.Stream(ctx, b.streamName()) })
	if err != nil {
		return fmt.Errorf("natsstore: the stream %s: %w", b.streamName(), err)
	}
	info := stream.CachedInfo()
	if fault := faultOf(info.Config); fault != "" {
		return fmt.Errorf("%w: natsstore: the stream %s %s", once.ErrInvalid, b.streamName(), fault)
	}
	b.clock.Learn(sent, info.TimeStamp, 1)
	b.stream.Store(&stream)
	return nil
}

// faultOf says what makes a stream unfit, or returns "".
func faultOf(c jetstream.StreamConfig) string {
	switch {
	case c.Retention != jetstream.LimitsPolicy:
		return "deletes what consumers have received: set its retention to limits"
	case c.MaxAge > 0, c.MaxMsgs > 0, c.MaxBytes > 0:
		return "has limits, at which it drops keys or refuses to record work that is done: remove max_age, max_msgs and max_bytes"
	case c.MaxMsgsPerSubject != 1:
		return "keeps old records: set max_msgs_per_subject to 1"
	case c.Storage != jetstream.FileStorage:
		return "is in memory: set its storage to file"
	case c.PersistMode != jetstream.DefaultPersistMode:
		return "replies before it has written: set its persist_mode to default"
	case c.NoAck:
		return "does not reply: set no_ack to false"
	case c.AllowDirect:
		return "lets replicas answer, which may not know the latest claims: set allow_direct to false"
	case !c.AllowMsgTTL:
		return "cannot forget keys: set allow_msg_ttl to true"
	case c.SubjectDeleteMarkerTTL > 0:
		return "puts markers in the place of forgotten keys: remove subject_delete_marker_ttl"
	case c.DenyDelete:
		return "refuses to delete messages: set deny_delete to false"
	case c.Sealed:
		return "is sealed"
	case c.Mirror != nil, len(c.Sources) > 0:
		return "copies another stream: remove its mirror and sources"
	case c.SubjectTransform != nil:
		return "changes subjects: remove its subject_transform"
	}
	return ""
}
