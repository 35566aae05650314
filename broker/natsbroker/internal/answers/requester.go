// Package answers asks a NATS server many things at once and waits for its answers.
package answers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

var (
	errDisconnected = errors.New("natsbroker: the connection to the server was lost before it answered")
	errNoAnswer     = errors.New("the server did not answer in time")
)

// ErrClosed says that nobody asks any more.
var ErrClosed = errors.New("natsbroker: closed")

// Admin is where answers come in. It may be used concurrently. The library's own PublishMsgAsync would keep what was given
// up on among its pending messages, and try again by itself, which breaks the order.
type Requester struct {
	nc   *nats.Conn
	wait time.Duration

	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	next    uint64
	waiting map[string]question
	closed  bool
}

// question is an answer that somebody waits for.
type question struct {
	index  int
	answer chan<- answer
}

type answer struct {
	index int
	msg   *nats.Msg
}

// NewRequester returns a Requester that waits for an answer as long as it is told, whatever a context allows.
func NewRequester(nc *nats.Conn, wait time.Duration) *Requester {
	return &Requester{nc: nc, wait: wait, waiting: make(map[string]question)}
}

// Ask sends messages in their order and waits for an answer to each, or its error. It sets their Reply.
func (d *Requester) Ask(ctx context.Context, ms []*nats.Msg) ([]*nats.Msg, []error) {
	got, errs := make([]*nats.Msg, len(ms)), make([]error, len(ms))
	if ctx.Err() != nil {
		return got, slices.Repeat([]error{ended(ctx)}, len(ms))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.wait, errNoAnswer)
	defer cancel()
	// Registered before anything is sent, so that no loss is missed. Losses from before do no harm: what is sent waits in
	// the connection until it is there again.
	lost := d.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer d.nc.RemoveStatusListener(lost)
	answers, err := d.register(ms)
	if err != nil {
		return got, slices.Repeat([]error{err}, len(ms))
	}
	defer d.forget(ms)

	left := 0
	for i, m := range ms {
		if errs[i] = d.nc.PublishMsg(m); errs[i] == nil {
			left++
		}
	}
	for ; left > 0 && err == nil; left-- {
		select {
		case a := <-answers:
			got[a.index] = a.msg
		case <-lost:
			err = errDisconnected
		case <-ctx.Done():
			err = ended(ctx)
		}
	}
	for i := range ms {
		if got[i] == nil && errs[i] == nil {
			errs[i] = err
		}
	}
	return got, errs
}

func ended(ctx context.Context) error { return fmt.Errorf("natsbroker: %w", context.Cause(ctx)) }

// register gives each message a subject for its answer.
func (d *Requester) register(ms []*nats.Msg) (<-chan answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if d.sub == nil {
		prefix := d.nc.NewInbox() + "."
		sub, err := d.nc.Subscribe(prefix+"*", d.take)
		if err != nil {
			return nil, fmt.Errorf("natsbroker: subscribe to answers: %w", err)
		}
		d.sub, d.prefix = sub, prefix
	}
	answers := make(chan answer, len(ms)) // a question is taken out before it is answered, so that none waits here
	for i, m := range ms {
		d.next++
		m.Reply = d.prefix + strconv.FormatUint(d.next, 36)
		d.waiting[m.Reply] = question{i, answers}
	}
	return answers, nil
}

func (d *Requester) forget(ms []*nats.Msg) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range ms {
		delete(d.waiting, m.Reply)
	}
}

func (d *Requester) take(m *nats.Msg) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q, ok := d.waiting[m.Subject]; ok {
		delete(d.waiting, m.Subject)
		q.answer <- answer{q.index, m}
	}
}

// Close lets nobody ask any more. Who waits for an answer waits in vain, until his time is over.
func (d *Requester) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.sub != nil {
		d.sub.Unsubscribe()
		d.sub = nil
	}
}
