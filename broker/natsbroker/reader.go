package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamRef is a stream by its name.
type streamRef struct {
	js      jetstream.JetStream
	name    string
	filters []string      // subjects; none means all
	wait    time.Duration // how long to wait for the server to answer
}

// readHandler gets the messages of a streamReader.
type readHandler interface {
	// take is called with one message at a time. The reader waits for it.
	take(*streamReader, jetstream.Msg, *jetstream.MsgMetadata)

	// broken is called when messages may be missing.
	broken(*streamReader, error)
}

// streamReader reads a stream in order, from one message on.
type streamReader struct {
	context.Context // ends with the reader

	stream  *streamRef
	created time.Time // when the stream was created
	cancel  context.CancelFunc
	consume jetstream.ConsumeContext

	// taking is held for one message at a time. A client that has restarted may
	// call with the next message while the last call still waits for room.
	taking   sync.Mutex
	consumer string // changes when the client restarts
	last     uint64 // sequence of the last message
}

// resets is how often the client restarts after a lost server before it gives up.
const resets = 10

// info asks the server for the stream.
func (s *streamRef) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

// countTime is after how long the server deletes a consumer that has counted, if
// that could not be deleted.
const countTime = 10 * time.Second

// count returns the number of messages from a sequence on. If they are not all in
// the stream, or not all of them match the filters, a consumer counts them.
func (s *streamRef) count(ctx context.Context, stream jetstream.Stream, from uint64) (int64, error) {
	state := &stream.CachedInfo().State
	if state.Msgs == 0 || from > state.LastSeq {
		return 0, nil
	}
	if len(s.filters) == 0 && state.Msgs == state.LastSeq-state.FirstSeq+1 {
		return int64(state.LastSeq - from + 1), nil
	}
	c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubjects:    s.filters,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       from,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: countTime,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return 0, err
	}
	is := c.CachedInfo()
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.wait)
	defer cancel()
	_ = stream.DeleteConsumer(ended, is.Name) // otherwise the server does, after countTime
	again, err := s.info(ctx)
	if err == nil && !again.Created.Equal(stream.CachedInfo().Created) {
		err = errors.New("the stream was recreated just now")
	}
	return int64(is.NumPending), err
}

// firstTime returns when the first message from a sequence on was stored. It is zero
// if there is none.
func (s *streamRef) firstTime(ctx context.Context, stream jetstream.Stream, from uint64) (first time.Time, err error) {
	filters := s.filters
	if len(filters) == 0 {
		filters = []string{">"}
	}
	for _, subject := range filters {
		m, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // it may have been deleted meanwhile
		case err != nil:
			return time.Time{}, err
		case first.IsZero() || m.Time.Before(first):
			first = m.Time
		}
	}
	return first, nil
}

// read starts to read at a sequence, or at the first message if from is 0. It
// breaks if the stream was not created at that time. The client fetches up to
// ahead messages in advance.
func (s *streamRef) read(ctx context.Context, created time.Time, from uint64, ahead int, to readHandler) (*streamReader, error) {
	cfg := jetstream.OrderedConsumerConfig{
		FilterSubjects:   s.filters,
		DeliverPolicy:    jetstream.DeliverAllPolicy,
		MaxResetAttempts: resets,
	}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	c, err := s.js.OrderedConsumer(ctx, s.name, cfg)
	if err != nil {
		return nil, err
	}
	r := &streamReader{stream: s, created: created}
	r.Context, r.cancel = context.WithCancel(context.Background())
	take := func(m jetstream.Msg) { r.take(m, to) }
	if r.consume, err = c.Consume(take, jetstream.PullMaxMessages(max(ahead, 2))); err != nil {
		r.cancel()
		return nil, err
	}
	go r.watch(to)
	return r, nil
}

// end ends the reader. A take in progress should return.
func (r *streamReader) end() {
	r.cancel()
	r.consume.Stop()
}

// watch reports that the client has given up.
func (r *streamReader) watch(to readHandler) {
	<-r.consume.Closed()
	if r.Err() == nil {
		to.broken(r, errors.New("the client has given up reading from the server"))
	}
}

// take checks the order of a message and passes it on.
func (r *streamReader) take(m jetstream.Msg, to readHandler) {
	r.taking.Lock()
	defer r.taking.Unlock()
	if r.Err() != nil {
		return
	}
	meta, err := r.check(m)
	if err == nil && meta.Sequence.Stream <= r.last {
		err = fmt.Errorf("sequence %d was overtaken by %d", meta.Sequence.Stream, r.last)
	}
	if err != nil {
		to.broken(r, fmt.Errorf("a message was lost: %w", err))
		r.cancel()
		return
	}
	r.last = meta.Sequence.Stream
	to.take(r, m, meta)
}

// check asks for the stream when the client has restarted, because the stream may
// have been recreated. Then other messages have these sequences.
func (r *streamReader) check(m jetstream.Msg) (*jetstream.MsgMetadata, error) {
	meta, err := m.Metadata()
	if err != nil || meta.Consumer == r.consumer {
		return meta, err
	}
	info, err := r.stream.info(r)
	if err == nil && !info.Created.Equal(r.created) {
		err = errors.New("the stream was recreated")
	}
	r.consumer = meta.Consumer
	return meta, err
}
