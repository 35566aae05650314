package pubsubbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	publishLimit = 32   // requests of a publisher at a time
	publishCount = 1000 // messages of a request, which is a limit of the service
)

// publisher publishes messages. A request has messages of one topic and one
// ordering key, as the service demands.
type publisher struct {
	broker *Broker
	slots  chan struct{}
	closed atomic.Bool
}

var (
	errPublisherClosed = errors.New("pubsubbroker: the publisher is closed")
	errEarlierFailed   = errors.New("pubsubbroker: the message was not sent, because an earlier one of its ordering key was not confirmed")
)

// line is the messages of one topic and one ordering key, in order.
type line struct {
	lineName
	at []int // indexes of the messages
}

type lineName struct{ topic, key string }

// Publish publishes messages and waits for the answers.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	if len(ms) == 0 {
		return nil
	}
	errs := make([]error, len(ms))
	encoded := make([]*pubsubpb.PubsubMessage, len(ms))
	for i, m := range ms {
		encoded[i], errs[i] = encode(m)
	}
	var sending sync.WaitGroup
	for _, l := range linesOf(ms, errs) {
		sending.Go(func() { p.publish(ctx, l, encoded, errs) })
	}
	sending.Wait()
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// linesOf returns the lines of the messages that have no error.
func linesOf(ms []*broker.Message, errs []error) (lines []*line) {
	byName := make(map[lineName]*line)
	for i, m := range ms {
		if errs[i] != nil {
			continue
		}
		name := lineName{m.Topic, m.OrderingKey}
		l := byName[name]
		if l == nil {
			l = &line{lineName: name}
			byName[name] = l
			lines = append(lines, l)
		}
		l.at = append(l.at, i)
	}
	return lines
}

// publish publishes a line, one request after the other. After a failure, it
// sends no more messages of an ordering key.
func (p *publisher) publish(ctx context.Context, l *line, encoded []*pubsubpb.PubsubMessage, errs []error) {
	mayFollow := true
	for _, at := range requestsOf(l.at, encoded) {
		if mayFollow || l.key == "" {
			mayFollow = p.send(ctx, l, at, encoded, errs)
		} else {
			setErrors(errs, at, errEarlierFailed)
		}
	}
}

func setErrors(errs []error, at []int, err error) {
	for _, i := range at {
		errs[i] = err
	}
}

// requestsOf divides a line into what fits into a request.
func requestsOf(line []int, encoded []*pubsubpb.PubsubMessage) (requests [][]int) {
	begin, size := 0, 0
	for j, i := range line {
		n := proto.Size(encoded[i]) + perMessage
		if j > begin && (j-begin == publishCount || size+n > maxRequest-ownBytes+perMessage) {
			requests = append(requests, line[begin:j])
			begin, size = j, 0
		}
		size += n
	}
	return append(requests, line[begin:])
}

// perMessage is the highest number of bytes that a request needs around a message.
const perMessage = 6

// send sends one request, and reports whether later messages of the line may
// follow. A request that the service rejects as invalid has stored nothing, so it
// is divided until the message is found that is to blame.
func (p *publisher) send(ctx context.Context, l *line, at []int, encoded []*pubsubpb.PubsubMessage, errs []error) bool {
	err := p.request(ctx, l.topic, at, encoded)
	switch {
	case err == nil:
		return true
	case status.Code(err) != codes.InvalidArgument:
		setErrors(errs, at, fmt.Errorf("pubsubbroker: publish to the topic %q: %w", l.topic, explain(err)))
		return false
	case len(at) == 1:
		errs[at[0]] = fmt.Errorf("%w: Pub/Sub rejects the message for the topic %q: %w", broker.ErrInvalid, l.topic, err)
		return true
	}
	half := len(at) / 2
	if p.send(ctx, l, at[:half], encoded, errs) || l.key == "" {
		return p.send(ctx, l, at[half:], encoded, errs)
	}
	setErrors(errs, at[half:], errEarlierFailed)
	return false
}

// request sends messages and waits for the answer. It does not repeat the
// request.
func (p *publisher) request(ctx context.Context, topic string, at []int, encoded []*pubsubpb.PubsubMessage) error {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.closed.Load() {
		return errPublisherClosed
	}
	request := &pubsubpb.PublishRequest{Topic: p.broker.full(topic, topics), Messages: make([]*pubsubpb.PubsubMessage, len(at))}
	for j, i := range at {
		request.Messages[j] = encoded[i]
	}
	reply, err := p.broker.client.TopicAdminClient.Publish(ctx, request, once)
	if err != nil {
		return err
	}
	if n := len(reply.GetMessageIds()); n != len(at) {
		return fmt.Errorf("the service confirmed %d of %d messages", n, len(at))
	}
	return nil
}

// explain adds what an error means.
func explain(err error) error {
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("%w: %w", err, errGone)
	}
	return err
}

// Close makes later calls of Publish fail. The client remains open.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}
