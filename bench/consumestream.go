package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
)

// stream is a source that creates messages on demand, so that no broker is
// measured. Its sessions share the messages. Returned messages are dropped.
type stream struct {
	name    string
	id      string // prefix of message IDs
	log     bool
	ordered bool  // messages have an ordering key: their account
	known   int64 // number of messages before they repeat; 0: all are new
	again   bool  // mark them as redelivered

	whole int64  // number of partitions; 1 if it is not a log
	parts []part // partitions that this source reads
	done  func(messages int, took time.Duration)
}

// part is a partition. The numbers of its messages are its own number plus
// multiples of the number of partitions.
type part struct {
	number int64
	name   string
	made   *atomic.Int64 // number of messages
}

func newStream(name string) *stream {
	return &stream{name: name, id: rand.Text()[:16] + "-", whole: 1, parts: newParts(1), done: func(int, time.Duration) {}}
}

func newLog(name string, partitions int) *stream {
	s := newStream(name)
	s.log, s.whole, s.parts = true, int64(partitions), newParts(partitions)
	return s
}

func newParts(n int) (parts []part) {
	for p := range n {
		parts = append(parts, part{number: int64(p), name: strconv.Itoa(p), made: new(atomic.Int64)})
	}
	return parts
}

// telling returns the stream with a callback for acknowledged messages.
func (s *stream) telling(done func(messages int, took time.Duration)) *stream {
	told := *s
	told.done = done
	return &told
}

// share returns one partition as a source.
func (s *stream) share(worker int) *stream {
	shared := *s
	p := worker % len(s.parts)
	shared.parts = s.parts[p : p+1]
	return &shared
}

func (s *stream) Name() string { return s.name }

func (s *stream) Open(_ context.Context, window int) (broker.Session, error) {
	parts := len(s.parts)
	room := make(chan struct{}, 1)
	return &streamSession{stream: s, window: window / parts, out: make([]atomic.Int64, parts), room: room}, nil
}

// message returns the message with a number. Only its time varies.
func (s *stream) message(n int64, now time.Time) *broker.Message {
	account := s.account(n)
	m := &broker.Message{ID: s.id + strconv.FormatInt(n, 10), Topic: s.name, Body: bodyFor(account), Time: now}
	if s.ordered {
		m.OrderingKey = strconv.FormatInt(account, 10)
	}
	return m
}

// account spreads the accounts evenly. Partitions share no account, so that
// transactions on several accounts do not deadlock if each partition is read in
// order.
func (s *stream) account(n int64) int64 {
	own := accounts / s.whole
	return n/s.whole*spreading%own*s.whole + n%s.whole
}

const spreading = 61_987 // a prime that divides no number of accounts

func (s *stream) position(p part, n int64) *broker.Position {
	if !s.log {
		return nil
	}
	return &broker.Position{Log: s.id, Partition: p.name, Offset: n/s.whole + 1}
}

const (
	bodySize     = 300
	beforeNumber = `{"account":`
	numberSize   = 8
)

var bodyFormat = beforeNumber + "%" + strconv.Itoa(numberSize) + `d,"note":"` +
	strings.Repeat("x", bodySize-len(beforeNumber)-numberSize-len(`,"note":""}`)) + `"}`

func bodyFor(account int64) []byte {
	return fmt.Appendf(make([]byte, 0, bodySize), bodyFormat, account)
}

// accountOf returns the account of a message.
func accountOf(m *broker.Message) (int, error) {
	account, err := accountIn(m.Body)
	if err != nil {
		err = fmt.Errorf("message %s: %w", m.ID, err)
	}
	return account, err
}

func accountIn(body []byte) (int, error) {
	if len(body) != bodySize {
		return 0, fmt.Errorf("the body has %d bytes, not %d", len(body), bodySize)
	}
	number := body[len(beforeNumber) : len(beforeNumber)+numberSize]
	return strconv.Atoi(strings.TrimLeft(string(number), " "))
}

// streamSession enforces only its window. Each partition has an equal share of
// it.
type streamSession struct {
	*stream
	window int
	out    []atomic.Int64
	room   chan struct{} // signals a settlement
}

// arrival tags messages that were delivered together.
type arrival struct {
	at   time.Time
	part int
}

func (s *streamSession) Receive(ctx context.Context, limit int) (ds []broker.Delivery, err error) {
	for ctx.Err() == nil {
		for p := range s.parts {
			if n := min(s.window-int(s.out[p].Load()), limit-len(ds)); n > 0 {
				s.out[p].Add(int64(n))
				ds = s.deliver(ds, p, n)
			}
		}
		if len(ds) > 0 {
			return ds, nil
		}
		select {
		case <-s.room:
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}

func (s *streamSession) deliver(ds []broker.Delivery, p, n int) []broker.Delivery {
	tag := &arrival{time.Now(), p}
	from := s.parts[p]
	ds = slices.Grow(ds, n)
	for next := from.made.Add(int64(n)) - int64(n); n > 0; n, next = n-1, next+1 {
		number := from.number + next*s.whole
		if s.known > 0 {
			number %= s.known
		}
		ds = append(ds, broker.Delivery{Message: s.message(number, tag.at), Redelivered: s.again,
			Position: s.position(from, number), Tag: tag})
	}
	return ds
}

func (s *streamSession) settle(ds []broker.Delivery) {
	for _, d := range ds {
		s.out[d.Tag.(*arrival).part].Add(-1)
	}
	select {
	case s.room <- struct{}{}:
	default:
	}
}

func (s *streamSession) Ack(_ context.Context, ds []broker.Delivery) error {
	s.settle(ds)
	s.done(len(ds), time.Since(ds[0].Tag.(*arrival).at))
	return nil
}

func (s *streamSession) Return(_ context.Context, ds []broker.Delivery, _ time.Duration) error {
	s.settle(ds)
	return nil
}

func (s *streamSession) Reject(_ context.Context, ds []broker.Delivery, _ string) error {
	s.settle(ds)
	return nil
}

func (s *streamSession) Close(context.Context) error { return nil }
