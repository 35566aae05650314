package sqsbroker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/sqsbroker"
)

// The size of a body that is still small enough in base64, with its attributes.
const (
	queueBody = 700 << 10
	topicBody = 180 << 10
)

// quiet is how long the suite watches for what must not happen. The service is in
// this process.
const quiet = 150 * time.Millisecond

func TestConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	for _, fifo := range []bool{false, true} {
		t.Run(map[bool]string{false: "standard", true: "fifo"}[fifo], func(t *testing.T) {
			t.Parallel()
			f := startFake(t)
			brokertest.Run(t, brokertest.Harness{
				Fresh:   func(tb testing.TB) brokertest.Place { return f.place(tb, fifo).harnessPlace() },
				Restart: f.restart, Confirms: true, Quiet: quiet,
			})
		})
	}
}

// SNS delivers messages in envelopes, or as they are to a raw subscription. What
// sessions do is the same.
func TestConformanceThroughTopics(t *testing.T) {
	t.Parallel() // most of it is waiting
	for _, c := range []struct{ fifo, raw bool }{{false, false}, {false, true}, {true, false}} {
		t.Run(fmt.Sprintf("fifo %v, raw %v", c.fifo, c.raw), func(t *testing.T) {
			t.Parallel()
			f := startFake(t)
			for _, rule := range brokertest.Cases(brokertest.Harness{
				Fresh: func(tb testing.TB) brokertest.Place {
					p := f.place(tb, c.fifo)
					h := p.harnessPlace()
					f.service.CreateTopic(p.queue)
					f.service.Subscribe(p.queue, p.queue, c.raw)
					h.Publisher = sqsbroker.NewSNSPublisher(f.topics, topicPrefix, &sqsbroker.Options{Unordered: true})
					h.MaxBody = topicBody
					return h
				},
				Confirms: true, Quiet: quiet,
			}) {
				switch group, _, _ := strings.Cut(rule.Name, "/"); group {
				case "message", "publish", "order", "reject":
					if _, err := rule.Check(t); err != nil {
						t.Errorf("%s: %v\nthe rule: %s", rule.Name, err, rule.Rule)
					}
				}
			}
		})
	}
}

func (p *place) harnessPlace() brokertest.Place {
	return brokertest.Place{Publisher: p.publisher, Source: p.source, Topic: p.queue, DeadLetters: p.letters, Unroutable: "missing" + suffix(p.fifo),
		MaxBody: queueBody, OneByOne: p.fifo, Unordered: !p.fifo}
}

// letters returns the dead letters.
func (p *place) letters(tb testing.TB) (ms []*broker.Message) {
	tb.Helper()
	s := open(tb, sqsbroker.New(p.client, nil).Queue(p.dead), 100)
	ctx, cancel := context.WithTimeout(tb.Context(), 2*quiet)
	defer cancel()
	for {
		ds, err := s.Receive(ctx, 100)
		if err != nil {
			must(tb, s.Close(soon(tb)))
			return ms
		}
		for _, d := range ds {
			ms = append(ms, d.Message)
		}
	}
}
