package webhookbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// call is one call of Publish.
type call struct {
	*publisher
	ms   []*broker.Message
	errs []error // each element is written by one goroutine

	mu   sync.Mutex
	down map[*endpoint]error // endpoints to which nothing more is sent, with the reason
}

// Publish sends messages. Those of different ordering keys are sent concurrently.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	c := &call{publisher: p, ms: ms, errs: make([]error, len(ms)), down: make(map[*endpoint]error)}
	c.all(ctx)
	if errors.Join(c.errs...) == nil {
		return nil
	}
	return c.errs
}

// all sends the messages of each ordering key one after another, and different
// keys concurrently.
func (c *call) all(ctx context.Context) {
	var wg sync.WaitGroup
	for _, chain := range chains(c.ms) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.follow(ctx, chain)
		}()
	}
	wg.Wait()
}

// chains returns the indexes of the messages of each ordering key. A message
// without a key has its own chain.
func chains(ms []*broker.Message) (all [][]int) {
	at := make(map[string]int)
	for i, m := range ms {
		if m != nil && m.OrderingKey != "" {
			if k, known := at[m.OrderingKey]; known {
				all[k] = append(all[k], i)
				continue
			}
			at[m.OrderingKey] = len(all)
		}
		all = append(all, []int{i})
	}
	return all
}

// follow sends a chain until a message fails.
func (c *call) follow(ctx context.Context, chain []int) {
	for k, i := range chain {
		if c.errs[i] = c.send(ctx, c.ms[i]); c.errs[i] == nil {
			continue
		}
		for _, later := range chain[k+1:] {
			c.errs[later] = notSentAfter(c.ms[i], c.ms[later])
		}
		return
	}
}

// notSentAfter returns the error of a message after one that failed.
func notSentAfter(failed, m *broker.Message) error {
	if err := m.Check(); err != nil {
		return err
	}
	return fmt.Errorf("webhookbroker: not sent: message %q, which is before it in its ordering key, failed", failed.ID)
}

// send sends a message to its endpoint.
func (c *call) send(ctx context.Context, m *broker.Message) error {
	if err := m.Check(); err != nil {
		return err
	}
	to := c.topics[m.Topic]
	if to == nil {
		to = c.other
	}
	if to == nil {
		return fmt.Errorf("webhookbroker: topic %q has no endpoint, and there is no default", m.Topic)
	}
	select {
	case to.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("webhookbroker: not sent: %w", ctx.Err())
	}
	defer func() { <-to.slots }()
	if c.closed.Load() {
		return errClosed
	}
	if err := c.whyNot(to); err != nil {
		return fmt.Errorf("webhookbroker: not sent: %w", err)
	}
	down, err := c.post(ctx, to, m)
	if down {
		c.mu.Lock()
		c.down[to] = err
		c.mu.Unlock()
	}
	return err
}

// whyNot returns why nothing is sent to an endpoint now, or nil.
func (c *call) whyNot(to *endpoint) error {
	if until := time.Unix(0, to.resting.Load()); time.Now().Before(until) {
		return fmt.Errorf("%s asked to retry after %s", to.Host, until.UTC().Format(time.RFC3339))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down[to]
}

// post makes the request for a message. down reports that the endpoint should get
// no further requests.
func (c *call) post(ctx context.Context, to *endpoint, m *broker.Message) (down bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(m.Body))
	if err != nil {
		return false, fmt.Errorf("webhookbroker: %s: %w", to.Host, err)
	}
	event(r.Header, m, c.source)
	hook.Sign(r.Header, to.secrets, escape(m.ID, '.'), m.Body, time.Now())
	answer, err := c.transport.RoundTrip(r) // which follows no redirects
	if err != nil {
		return true, fmt.Errorf("webhookbroker: %s: %w", to.Host, err)
	}
	defer answer.Body.Close()
	status := answer.StatusCode
	switch {
	case status == http.StatusSwitchingProtocols: // its body is the connection, which does not end with ctx
		return true, fmt.Errorf("webhookbroker: %s switched to another protocol", to.Host)
	case 200 <= status && status < 300:
		hook.Drain(answer.Body)
		return false, nil
	}
	err = fmt.Errorf("webhookbroker: %s answered %d %s%s", to.Host, status, http.StatusText(status), to.Excerpt(answer.Body))
	switch {
	case isAboutTheMessage(status):
		return false, fmt.Errorf("%w: %w", broker.ErrInvalid, err)
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		if d := retryAfter(answer.Header.Get("Retry-After"), time.Now()); d > 0 {
			to.resting.Store(time.Now().Add(d).UnixNano())
		}
		return true, err
	}
	return false, err
}

// isAboutTheMessage reports whether a status rejects the message itself.
func isAboutTheMessage(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotAcceptable, http.StatusUnprocessableEntity,
		http.StatusRequestHeaderFieldsTooLarge:
		return true
	}
	return http.StatusLengthRequired <= status && status <= http.StatusExpectationFailed // 411 to 417
}

// longestRest limits a Retry-After, because a relay gives up on a message that it
// cannot send for a long time.
const longestRest = time.Minute

// retryAfter parses a Retry-After: seconds, or a date. It returns 0 for anything
// else.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, longestRest)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), longestRest))
}
