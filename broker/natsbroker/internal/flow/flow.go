// Package flow reads a stream in its order, from one place on.
package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Stream is what a flow reads.
type Stream struct {
	JS      jetstream.JetStream
	Name    string
	Filters []string      // subjects; none: all
	Wait    time.Duration // how long the server is asked for the stream or a consumer
}

// Reader is who a flow is for.
type Reader interface {
	// Take is called with one message after the other, and may wait: the flow does, too.
	Take(*Flow, jetstream.Msg, *jetstream.MsgMetadata)

	// Broken is called when messages may be missing.
	Broken(*Flow, error)
}

// Flow is what comes.
type Flow struct {
	context.Context // ends with it

	stream  *Stream
	made    time.Time // the stream
	cancel  context.CancelFunc
	consume jetstream.ConsumeContext

	// taking is held for one message at a time. A client that had to begin anew calls for the next message while the
	// call for the one before may still wait for room.
	taking   sync.Mutex
	consumer string // the server's; it changes when the client had to begin anew
	last     uint64 // the number of the last message that was taken
}

// resets is how often the client tries to go on after a lost server, before the flow is broken.
const resets = 10

// Look asks for the stream.
func (s *Stream) Look(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	stream, err := s.JS.Stream(ctx, s.Name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

// Read begins at a sequence number of a stream that was made at a time; 0: at its first message. What the client asks
// for ahead is bounded.
func (s *Stream) Read(ctx context.Context, made time.Time, from uint64, ahead int, to Reader) (*Flow, error) {
	cfg := jetstream.OrderedConsumerConfig{
		FilterSubjects:   s.Filters,
		DeliverPolicy:    jetstream.DeliverAllPolicy,
		MaxResetAttempts: resets,
	}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	c, err := s.JS.OrderedConsumer(ctx, s.Name, cfg)
	if err != nil {
		return nil, err
	}
	f := &Flow{stream: s, made: made}
	f.Context, f.cancel = context.WithCancel(context.Background())
	take := func(m jetstream.Msg) { f.take(m, to) }
	if f.consume, err = c.Consume(take, jetstream.PullMaxMessages(max(ahead, 2))); err != nil {
		f.cancel()
		return nil, err
	}
	go f.watch(to)
	return f, nil
}

// End lets nothing more come. A Take that waits is to return when the flow has ended.
func (f *Flow) End() {
	f.cancel()
	f.consume.Stop()
}

// watch notices that the client has given up.
func (f *Flow) watch(to Reader) {
	<-f.consume.Closed()
	if f.Err() == nil {
		to.Broken(f, errors.New("the server could not be read any more"))
	}
}

func (f *Flow) take(m jetstream.Msg, to Reader) {
	f.taking.Lock()
	defer f.taking.Unlock()
	if f.Err() != nil {
		return
	}
	meta, err := f.check(m)
	if err == nil && meta.Sequence.Stream <= f.last {
		err = fmt.Errorf("number %d was overtaken by %d", meta.Sequence.Stream, f.last)
	}
	if err != nil {
		to.Broken(f, fmt.Errorf("a message was lost: %w", err))
		f.cancel()
		return
	}
	f.last = meta.Sequence.Stream
	to.Take(f, m, meta)
}

// check looks at the stream when the client has begun anew, because somebody may have made it anew meanwhile: what lies
// at these numbers then are other messages.
func (f *Flow) check(m jetstream.Msg) (*jetstream.MsgMetadata, error) {
	meta, err := m.Metadata()
	if err != nil || meta.Consumer == f.consumer {
		return meta, err
	}
	info, err := f.stream.Look(f)
	if err == nil && !info.Created.Equal(f.made) {
		err = errors.New("the stream was made anew")
	}
	f.consumer = meta.Consumer
	return meta, err
}
