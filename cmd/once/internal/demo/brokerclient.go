package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

// remote is the broker as a process of the shop sees it: over a socket, which
// is cut when either end dies.
type remote struct{ url string }

// call sends a request and reads the answer.
func (r remote) call(ctx context.Context, path string, what, answer any) error {
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refused(resp)
	}
	if answer == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

func refused(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	return fmt.Errorf("the broker of the demo: %s", strings.TrimSpace(string(text)))
}

// Publish returns when all messages are stored.
func (r remote) Publish(ctx context.Context, ms []*broker.Message) []error {
	texts := make([]string, len(ms))
	failure := r.call(ctx, "/publish", ms, &texts)
	errs, failed := make([]error, len(ms)), false
	for i := range ms {
		switch {
		case failure != nil:
			errs[i], failed = failure, true
		case i < len(texts) && texts[i] != "":
			errs[i], failed = errors.New(texts[i]), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// Close does nothing.
func (remote) Close() error { return nil }

// queue is the source of a consumer.
type queue struct {
	at       remote
	consumer string
}

func (q queue) Name() string { return "demo queue " + q.consumer }

// RedeliveryHorizon returns that of a broker that keeps messages for ever.
func (queue) RedeliveryHorizon(context.Context) (time.Duration, error) { return 0, nil }

func (q queue) Open(ctx context.Context, window int) (broker.Session, error) {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, end) // ctx limits only the opening
	req, err := http.NewRequestWithContext(lasting, http.MethodPost, fmt.Sprintf("%s/consume/%s?window=%d", q.at.url, q.consumer, window), nil)
	if err != nil {
		end()
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		end()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer end()
		defer resp.Body.Close()
		return nil, refused(resp)
	}
	s := &connection{at: q.at, end: end, arrived: make(chan broker.Delivery, window), broken: make(chan struct{})}
	lines := json.NewDecoder(resp.Body)
	var first arrival
	if err := lines.Decode(&first); err != nil || !opened() {
		end()
		resp.Body.Close()
		return nil, errors.Join(err, ctx.Err())
	}
	s.number = first.Session
	go s.read(lasting, resp.Body, lines)
	return s, nil
}

// connection is a session: the response to one endless request.
type connection struct {
	at      remote
	number  int
	end     context.CancelFunc
	arrived chan broker.Delivery
	broken  chan struct{} // closed when no more deliveries arrive
}

func (s *connection) read(ctx context.Context, body io.Closer, lines *json.Decoder) {
	defer close(s.broken)
	defer body.Close()
	for {
		var a arrival
		if err := lines.Decode(&a); err != nil {
			return
		}
		select {
		case s.arrived <- broker.Delivery{Message: a.Message, Redelivered: a.Redelivered, Origin: a.Origin, Tag: a.Tag}:
		case <-ctx.Done():
			return
		}
	}
}

func (s *connection) Receive(ctx context.Context, limit int) (ds []broker.Delivery, err error) {
	select {
	case d := <-s.arrived:
		ds = append(ds, d)
	case <-s.broken:
		return nil, errors.New("the broker of the demo has stopped")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(ds) < limit {
		select {
		case d := <-s.arrived:
			ds = append(ds, d)
		default:
			return ds, nil
		}
	}
	return ds, nil
}

func (s *connection) settle(ctx context.Context, ds []broker.Delivery, v verdict) error {
	if len(ds) == 0 {
		return nil
	}
	v.Session = s.number
	for _, d := range ds {
		tag, _ := d.Tag.(int)
		v.Tags = append(v.Tags, tag)
	}
	return s.at.call(ctx, "/settle", v, nil)
}

func (s *connection) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ctx, ds, verdict{How: acknowledge})
}

func (s *connection) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	return s.settle(ctx, ds, verdict{How: giveBack, After: after})
}

func (s *connection) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.settle(ctx, ds, verdict{How: giveUp, Reason: reason})
}

// Close closes the connection, so that unsettled messages are redelivered.
func (s *connection) Close(context.Context) error {
	s.end()
	<-s.broken
	return nil
}

// LongestDelay returns that of membroker.
func (s *connection) LongestDelay() time.Duration { return time.Hour }

// KeepsRejected reports that membroker has a queue for rejected messages.
func (s *connection) KeepsRejected() bool { return true }
