package brokertest

import (
	"context"
	"errors"
	"strings"

	"github.com/effectively-once/once/broker"
)

func publishRules() []rule {
	return []rule{
		{"publish/batch", "Publish accepts no message, one, a hundred and a thousand, and all of them arrive", publishBatch},
		{"publish/invalid", "a message that Check rejects is ErrInvalid, and the others of the batch arrive", publishInvalid},
		{"publish/caller-owns", "Publish neither keeps nor changes the slice and the messages of its caller", publishCallerOwns},
		{"publish/equal-ids", "messages with an equal ID in a batch are each confirmed", publishEqualIDs},
		{"publish/deduplicates", "a Deduplicator drops a message with an ID that it has seen recently", publishDeduplicates},
		{"publish/ended-context", "Publish returns when its context ends, and the publisher can be used again", publishEndedContext},
		{"publish/concurrent", "Publish may be called concurrently", publishConcurrent},
		{"publish/unroutable", "a message that no queue takes is an error, and the others are not", publishUnroutable},
	}
}

func publishBatch(b *bench) {
	b.must("Publish without messages", allConfirmed(nil, b.Publisher.Publish(b, nil)))
	s := b.open(wide)
	for _, n := range []int{1, 100, 1000} {
		b.consume(s, b.send(n))
	}
}

// consume receives and acknowledges messages until all of ms have come.
func (b *bench) consume(s broker.Session, ms []*broker.Message) {
	due := idsOf(ms)
	ctx, cancel := b.within()
	defer cancel()
	for len(due) > 0 {
		ds, err := s.Receive(ctx, wide)
		if err != nil {
			b.failf("Receive, with %d of %d messages missing: %v", len(due), len(ms), err)
		}
		b.sane(ds, wide)
		for _, d := range ds {
			if !due[d.Message.ID] && !d.Redelivered {
				b.failf("%s came, which came before or was never published", d.Message.ID)
			}
			delete(due, d.Message.ID)
		}
		b.ack(s, ds...)
	}
}

func idsOf(ms []*broker.Message) map[string]bool {
	due := make(map[string]bool)
	for _, m := range ms {
		due[m.ID] = true
	}
	return due
}

func publishInvalid(b *bench) {
	broken := func(spoil func(*broker.Message)) *broker.Message {
		m := b.message("")
		spoil(m)
		return m
	}
	ms := []*broker.Message{
		b.message(""),
		nil,
		broken(func(m *broker.Message) { m.ID = "" }),
		broken(func(m *broker.Message) { m.Topic = "" }),
		b.message(""),
		broken(func(m *broker.Message) { m.ID = strings.Repeat("x", 256) }),
		broken(func(m *broker.Message) { m.ID = "line\nbreak" }),
		broken(func(m *broker.Message) { m.OrderingKey = "\xff" }),
		broken(func(m *broker.Message) { m.Header = map[string]string{"Upper": "case"} }),
		broken(func(m *broker.Message) { m.Header = map[string]string{"x": "line\nbreak"} }),
		b.message(""),
	}
	valid := map[int]bool{0: true, 4: true, len(ms) - 1: true}
	ctx, cancel := b.within()
	defer cancel()
	errs := b.Publisher.Publish(ctx, ms)
	if len(errs) != len(ms) {
		b.failf("%d errors for %d messages, some of which are invalid: want one for each", len(errs), len(ms))
	}
	for i, err := range errs {
		if valid[i] && err != nil || !valid[i] && !errors.Is(err, broker.ErrInvalid) {
			b.failf("message %d, valid %v: %v", i, valid[i], err)
		}
	}
	s := b.open(wide)
	b.get(s, []*broker.Message{ms[0], ms[4], ms[len(ms)-1]})
	b.nothing(s, "the others were invalid")
}

func publishCallerOwns(b *bench) {
	m := b.message("key")
	m.Header = map[string]string{"a": "b"}
	m.Attempt = 7
	was := *m
	was.Header = map[string]string{"a": "b"}
	was.Body = append([]byte(nil), m.Body...)
	ms := []*broker.Message{m}
	b.publish(ms...)
	if ms[0] != m || m.Attempt != 7 {
		b.failf("Publish changed the slice or the message: %+v", ms[0])
	}
	b.same(&was, m)
	m.ID, m.OrderingKey, m.Header["a"], m.Header["c"] = "changed", "changed", "changed", "changed"
	copy(m.Body, "changed")
	b.same(&was, b.get(b.open(wide), []*broker.Message{&was})[0].Message)
}

func publishEqualIDs(b *bench) {
	m, other := b.message(""), b.message("")
	again := *m
	b.publish(m, &again, other, m)
	b.publish(m)
	s, came := b.open(wide), make(map[string]bool)
	for len(came) < 2 {
		for _, d := range b.receive(s, wide) {
			if !has([]*broker.Message{m, other}, d.Message.ID) {
				b.failf("%s came, which was never published", d.Message.ID)
			}
			came[d.Message.ID] = true
		}
	}
}

func publishDeduplicates(b *bench) {
	d, ok := b.Publisher.(broker.Deduplicator)
	b.needs(ok && d.DeduplicationWindow() > 0, "the publisher drops no messages that it has seen")
	if d.DeduplicationWindow() < b.harness.quiet() {
		b.needs(false, "the publisher forgets messages too soon to be seen")
	}
	ms := b.messages(2, "")
	b.publish(ms[0], ms[1], ms[0])
	b.publish(ms[1])
	s := b.open(wide)
	b.get(s, ms)
	b.nothing(s, "all messages came, and their copies are dropped")
}

func publishEndedContext(b *bench) {
	ended, cancel := context.WithCancel(b)
	cancel()
	ms := b.messages(3, "")
	answered := make(chan []error, 1)
	go func() { answered <- b.Publisher.Publish(ended, ms) }()
	ctx, stop := b.within()
	defer stop()
	select {
	case errs := <-answered:
		if errs != nil && len(errs) != len(ms) {
			b.failf("%d errors for %d messages: want one for each, or nil", len(errs), len(ms))
		}
		for i, err := range errs {
			if errors.Is(err, broker.ErrInvalid) {
				b.failf("message %d is ErrInvalid because the context has ended: %v", i, err)
			}
		}
	case <-ctx.Done():
		b.failf("Publish waits on, although its context has ended")
	}
	next := b.send(2)
	b.get(b.open(wide), next, ms...)
}

func publishConcurrent(b *bench) {
	const callers, calls = 16, 8
	ms := b.messages(3*callers*calls, "")
	b.together(callers, func(i int) {
		for j := range calls {
			at := 3 * (i*calls + j)
			b.publish(ms[at : at+3]...)
		}
	})
	b.consume(b.open(wide), ms)
}

func publishUnroutable(b *bench) {
	b.needs(b.Unroutable != "", "the place has no unroutable topic")
	b.needs(b.harness.Confirms, "the broker does not tell which messages are unroutable")
	ms := b.messages(3, "")
	ms[1].Topic = b.Unroutable
	ctx, cancel := b.within()
	defer cancel()
	errs := b.Publisher.Publish(ctx, ms)
	if len(errs) != len(ms) || errs[0] != nil || errs[1] == nil || errs[2] != nil {
		b.failf("the second of three messages goes nowhere, and the errors are %v", errs)
	}
	if errors.Is(errs[1], broker.ErrInvalid) {
		b.failf("a queue may take it tomorrow, and it is ErrInvalid: %v", errs[1])
	}
	b.get(b.open(wide), []*broker.Message{ms[0], ms[2]})
}
