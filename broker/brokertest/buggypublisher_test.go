//go:build go1.25

package brokertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
)

// buggyPublisher publishes to membroker with one bug, or none.
type buggyPublisher struct {
	*world
	inner  broker.Publisher
	calls  atomic.Int64
	busy   atomic.Int64
	broken atomic.Bool
}

var errBuggy = errors.New("connection reset")

func (p *buggyPublisher) Close() error { return p.inner.Close() }

func (p *buggyPublisher) DeduplicationWindow() time.Duration {
	if p.has("deduplication claimed") {
		return time.Minute
	}
	return 0
}

func (p *buggyPublisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	call := p.calls.Add(1)
	defer p.busy.Add(-1)
	if p.busy.Add(1) > 1 && p.has("calls meet") {
		return nil
	}
	sent := p.spoil(ms)
	switch p.bug {
	case "calls meet":
		time.Sleep(time.Millisecond) // lets others step in between
	case "context changes nothing":
		if ctx.Err() != nil {
			time.Sleep(time.Hour)
		}
	case "ended context is the message's fault":
		if ctx.Err() != nil {
			return all(ms, broker.ErrInvalid)
		}
	case "ended context breaks the publisher":
		if p.broken.Load() || ctx.Err() != nil {
			p.broken.Store(true)
			return all(ms, errBuggy)
		}
	case "restart breaks the publisher":
		if p.restarts.Load() > 0 {
			return all(ms, errBuggy)
		}
	case "calls overtake each other":
		if call%2 == 1 && len(ms) > 1 && ms[0] != nil && ms[0].OrderingKey != "" {
			p.later(5*time.Millisecond, sent)
			return nil
		}
	case "confirmed before it is stored":
		if len(ms) == 1 && ctx.Err() == nil && ms[0] != nil && ms[0].Check() == nil {
			return p.optimistic(sent)
		}
	case "hidden retries":
		return p.retried(ctx, sent)
	case "a batch ends at 500":
		sent = sent[:min(len(sent), 500)]
	case "one error for all":
		if errs := p.inner.Publish(ctx, sent); errs != nil {
			return errs[:1]
		}
		return nil
	case "one error fails all":
		if i := slices.IndexFunc(ms, func(m *broker.Message) bool { return m.Check() != nil }); i >= 0 {
			return all(ms, ms[i].Check())
		}
	}
	return p.answer(ms, p.inner.Publish(ctx, sent))
}

// answer returns the result of a call with the bug.
func (p *buggyPublisher) answer(ms []*broker.Message, errs []error) []error {
	switch p.bug {
	case "a batch ends at 500":
		return nil
	case "errors of Check flattened":
		for i, err := range errs {
			if err != nil {
				errs[i] = fmt.Errorf("%v", err)
			}
		}
	case "unroutable is confirmed":
		for i, m := range ms {
			if m != nil && m.Topic == "nowhere" {
				errs[i] = nil
			}
		}
	case "unroutable fails all":
		if slices.ContainsFunc(ms, func(m *broker.Message) bool { return m != nil && m.Topic == "nowhere" }) {
			return all(ms, errBuggy)
		}
	case "equal IDs wait for one confirmation":
		seen := make(map[string]bool)
		for i, m := range ms {
			if m != nil && seen[m.ID] {
				errs = make([]error, len(ms))
				errs[i] = errBuggy
			}
			if m != nil {
				seen[m.ID] = true
			}
		}
	}
	return errs
}

func all(ms []*broker.Message, err error) []error { return slices.Repeat([]error{err}, len(ms)) }

// later stores messages after Publish has returned.
func (p *buggyPublisher) later(d time.Duration, ms []*broker.Message) {
	time.AfterFunc(d, func() { p.inner.Publish(context.Background(), ms) })
}

// optimistic confirms messages and keeps them where a restart loses them.
func (p *buggyPublisher) optimistic(ms []*broker.Message) []error {
	before := p.restarts.Load()
	time.AfterFunc(time.Millisecond, func() {
		if p.restarts.Load() == before {
			p.inner.Publish(context.Background(), ms)
		}
	})
	return nil
}

// retried returns no error, and publishes failed messages again after later
// ones.
func (p *buggyPublisher) retried(ctx context.Context, ms []*broker.Message) []error {
	errs := p.inner.Publish(ctx, ms)
	if errs == nil || ctx.Err() != nil || errors.Is(errs[0], broker.ErrInvalid) || len(ms) != 1 {
		return errs
	}
	if p.calls.Load()%2 == 0 {
		return errs
	}
	p.later(time.Minute/2, ms)
	return nil
}

// spoil returns copies of messages with the bug.
func (p *buggyPublisher) spoil(ms []*broker.Message) []*broker.Message {
	var sent []*broker.Message
	for _, m := range ms {
		if m == nil {
			sent = append(sent, nil)
			continue
		}
		if p.has("attempt reset in the caller's message") {
			m.Attempt = 0
		}
		c := *m
		c.Header = maps.Clone(m.Header)
		if m.Check() == nil {
			p.spoilOne(&c)
		}
		sent = append(sent, &c)
	}
	if p.has("a batch backwards") && len(ms) == 200 {
		slices.Reverse(sent)
	}
	return sent
}

func (p *buggyPublisher) spoilOne(m *broker.Message) {
	switch p.bug {
	case "headers dropped":
		m.Header = nil
	case "empty headers dropped":
		maps.DeleteFunc(m.Header, func(_, value string) bool { return value == "" })
	case "the library's headers dropped":
		delete(m.Header, "once-trace")
	case "cause taken for the ordering key":
		if cause := m.Header[broker.KeyHeader]; cause != "" {
			m.OrderingKey = cause
		}
	case "ordering key where the cause was":
		if m.OrderingKey != "" && m.Header[broker.KeyHeader] != "" {
			delete(m.Header, broker.KeyHeader)
		}
	case "headers of its own":
		m.Header = map[string]string{"x-adapter": "was here"}
	case "ordering key dropped":
		m.OrderingKey = ""
	case "time in seconds":
		m.Time = m.Time.Truncate(time.Second)
	case "time of another zone":
		m.Time = time.Date(m.Time.Year(), m.Time.Month(), m.Time.Day(), m.Time.Hour(), m.Time.Minute(), m.Time.Second(),
			m.Time.Nanosecond(), time.UTC)
	case "body cut at 64 KiB":
		m.Body = m.Body[:min(len(m.Body), 1<<16)]
	case "body made text":
		m.Body = bytes.ToValidUTF8(m.Body, []byte("?"))
	case "empty body replaced":
		if len(m.Body) == 0 {
			m.Body = []byte("null")
		}
	case "long IDs cut":
		m.ID = m.ID[:min(len(m.ID), 128)]
	case "IDs escaped":
		m.ID = fmt.Sprintf("%+q", m.ID)[1:][:len(fmt.Sprintf("%+q", m.ID))-2]
	}
}
