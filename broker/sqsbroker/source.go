package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once/broker"
)

const (
	openTime     = 10 * time.Second // how long Open may take at most
	identityTime = time.Minute      // how often a session checks at least that its queue is the same
)

// source is a queue.
type source struct {
	broker *Broker
	queue  string
}

var (
	_ broker.Lagger  = (*source)(nil)
	_ broker.Located = (*source)(nil)
	_ broker.Horizon = (*source)(nil)
)

// Name returns the name of the queue.
func (c *source) Name() string { return "sqs queue " + c.queue }

// look asks the service for the queue.
func (c *source) look(ctx context.Context) (facts, error) {
	f, err := lookUp(ctx, c.broker.client, c.queue)
	if err != nil {
		err = c.explain(err)
	}
	return f, err
}

// Location returns the account and the region of the queue.
func (c *source) Location(ctx context.Context) (map[string]string, error) {
	f, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"partition": part(f.arn, 1), "region": part(f.arn, 3), "account": part(f.arn, 4)}, nil
}

// RedeliveryHorizon returns how long the queue keeps messages, which imitations of
// the service may do for ever. A message that is moved back from a dead-letter
// queue is stored anew.
func (c *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	f, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	if f.retention == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseInt(f.retention, 10, 64)
	if err != nil {
		return 0, c.explain(fmt.Errorf("the service says that messages are kept for %.40q seconds", f.retention))
	}
	return time.Duration(seconds) * time.Second, nil
}

// Lag returns the approximate number of messages that are in the queue, in
// flight or delayed. SQS does not say how old they are.
func (c *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	f, err := c.look(ctx)
	if err != nil {
		return lag, err
	}
	for _, text := range f.waiting {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return lag, c.explain(fmt.Errorf("the service counts %.40q messages", text))
		}
		lag.Messages += n
	}
	return lag, nil
}

// explain adds the name of the source to an error.
func (c *source) explain(err error) error {
	if isGone(err) {
		return fmt.Errorf("sqsbroker: %s: %w. If the queue was deleted, its messages are lost, and those that were not handled must be sent again", c.Name(), err)
	}
	return fmt.Errorf("sqsbroker: %s: %w", c.Name(), err)
}

// check returns an error if the source can never be opened.
func (c *source) check(window int) error {
	switch v, w := c.broker.options.Visibility, c.broker.options.Wait; {
	case window < 1:
		return fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	case v < shortestVisibility || v > longestVisibility || v%time.Second != 0:
		return fmt.Errorf("%w: Visibility is %v: give whole seconds from %v to %v", broker.ErrInvalid, v, shortestVisibility, longestVisibility)
	case w < time.Second || w > longestWait || w%time.Second != 0:
		return fmt.Errorf("%w: Wait is %v: give whole seconds from %v to %v", broker.ErrInvalid, w, time.Second, longestWait)
	case c.broker.options.DeadLetter == c.queue:
		return fmt.Errorf("%w: the dead letters of the queue %q would go back to it: give them another queue", broker.ErrInvalid, c.queue)
	}
	return nil
}

// Open looks the queue and its dead-letter queue up. It creates nothing.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if err := c.check(window); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	is, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		source:     c,
		client:     c.broker.client,
		visibility: c.broker.options.Visibility,
		is:         is,
		window:     window,
		most:       1,
		wake:       make(chan struct{}, 1),
		room:       make(chan struct{}, 1),
		pumped:     make(chan struct{}),
		kept:       make(chan struct{}),
		all:        make(map[*arrival]bool),
		out:        make(map[string]*arrival),
	}
	if s.deadURL, err = c.findDeadLetter(ctx, is); err != nil {
		return nil, err
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.polling, s.stopPolling = context.WithCancel(context.Background())
	go s.pump()
	go s.keep(time.NewTicker(s.visibility/3), time.NewTicker(min(identityTime, 2*s.visibility)))
	return s, nil
}

// findDeadLetter returns the URL of the queue for dead letters; empty: there is
// none.
func (c *source) findDeadLetter(ctx context.Context, is facts) (string, error) {
	in := &sqs.GetQueueUrlInput{}
	switch name := c.broker.options.DeadLetter; {
	case name != "":
		in.QueueName = &name
	case is.deadLetter != "":
		in.QueueName, in.QueueOwnerAWSAccountId = aws.String(part(is.deadLetter, 5)), aws.String(part(is.deadLetter, 4))
	default:
		return "", nil
	}
	if strings.HasSuffix(*in.QueueName, fifoSuffix) != is.fifo {
		return "", fmt.Errorf("%w: %s and its queue for dead letters, %q, must both be FIFO, or neither", broker.ErrInvalid, c.Name(), *in.QueueName)
	}
	found, err := c.broker.client.GetQueueUrl(ctx, in)
	if err != nil {
		return "", fmt.Errorf("sqsbroker: %s: find its queue for dead letters, %q: %w", c.Name(), *in.QueueName, err)
	}
	return aws.ToString(found.QueueUrl), nil
}

var errRecreated = errors.New("the queue was deleted and made anew. The messages of the old one are lost, and those that were not handled must be sent again")
