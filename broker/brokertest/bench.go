package brokertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// bench is the state of a running case: its place, its messages and its failure.
// It is not a testing.T, because a test that passes must show that cases fail.
type bench struct {
	context.Context
	Place
	tb      testing.TB
	harness Harness
	onTest  chan func() // calls for the goroutine of the test, which alone may call Fatal
	run     string      // makes IDs unique
	sent    int

	mu       sync.Mutex
	first    error
	skipped  string
	sessions []broker.Session
}

// longest limits a case to a multiple of the patience, in case an adapter waits
// for ever.
const longest = 10

// inCase runs a case in its own goroutine. A failure ends the goroutine, as in
// package testing.
func inCase(tb testing.TB, h Harness, check func(*bench)) (skipped string, err error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longest*h.patience())
	defer cancel()
	b := &bench{Context: ctx, Place: h.Fresh(tb), tb: tb, harness: h, onTest: make(chan func()), run: unique()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.closeSessions()
		check(b)
	}()
	for {
		select {
		case call := <-b.onTest:
			call()
		case <-done:
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.skipped, b.first
		}
	}
}

func unique() string {
	var random [8]byte
	rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// failf records a failure and ends the calling goroutine. The first failure of a
// case counts.
func (b *bench) failf(format string, args ...any) {
	b.mu.Lock()
	if b.first == nil {
		b.first = fmt.Errorf(format, args...)
	}
	b.mu.Unlock()
	runtime.Goexit()
}

// needs skips the case if the broker lacks what it checks.
func (b *bench) needs(there bool, why string) {
	if !there {
		b.mu.Lock()
		b.skipped = why
		b.mu.Unlock()
		runtime.Goexit()
	}
}

func (b *bench) failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first != nil
}

// must fails if a call returned an error.
func (b *bench) must(doing string, err error) {
	if err != nil {
		b.failf("%s: %v", doing, err)
	}
}

// wantErr fails unless err is target.
func (b *bench) wantErr(doing string, err, target error) {
	if !errors.Is(err, target) {
		b.failf("%s: got error %v, want %v", doing, err, target)
	}
}

// test calls a function of the harness in the goroutine of the test.
func (b *bench) test(call func(testing.TB)) {
	done := make(chan struct{})
	select {
	case b.onTest <- func() { call(b.tb); close(done) }:
	case <-b.Done():
		b.failf("the harness: %v", b.Err())
	}
	select {
	case <-done:
	case <-b.Done():
		b.failf("the harness: %v", b.Err())
	}
}

func (b *bench) restart() { b.test(b.harness.Restart) }

// within returns a context for something that must happen.
func (b *bench) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b, b.harness.patience())
}

var errNotYet = errors.New("it is not so")

// until polls a condition that must become true.
func (b *bench) until(what string, ok func() bool) {
	b.repeat(what, func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	})
}

// repeat tries until there is no error.
func (b *bench) repeat(what string, try func() error) {
	ctx, cancel := b.within()
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for err := try(); err != nil; err = try() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.failf("%s: not within %v: %v", what, b.harness.patience(), err)
		}
	}
}

// together runs n calls concurrently and waits for them. It fails if one of them
// does.
func (b *bench) together(n int, call func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-start
			call(i)
		}()
	}
	close(start)
	wg.Wait()
	if b.failed() {
		runtime.Goexit()
	}
}

// message returns a message with a unique ID and body.
func (b *bench) message(orderingKey string) *broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent++
	id := fmt.Sprintf("%s-%d", b.run, b.sent)
	return &broker.Message{ID: id, Topic: b.Topic, OrderingKey: orderingKey, Body: []byte("body of " + id)}
}

// messages returns n messages with the same ordering key, which may be empty.
func (b *bench) messages(n int, orderingKey string) []*broker.Message {
	ms := make([]*broker.Message, n)
	for i := range ms {
		ms[i] = b.message(orderingKey)
	}
	return ms
}

// sharedKey returns an ordering key of messages that are in flight together.
func (b *bench) sharedKey() string {
	if b.OneByOne {
		return ""
	}
	return "key"
}

// publish publishes messages. It fails unless all are confirmed.
func (b *bench) publish(ms ...*broker.Message) {
	ctx, cancel := b.within()
	defer cancel()
	b.must("Publish", allConfirmed(ms, b.Publisher.Publish(ctx, ms)))
}

// allConfirmed returns an error unless all messages were confirmed. It also
// checks the form of errs: nil, or an error for each message, of which one is
// not nil.
func allConfirmed(ms []*broker.Message, errs []error) error {
	if errs == nil {
		return nil
	}
	if len(errs) != len(ms) {
		return fmt.Errorf("%d errors for %d messages: want one for each, or nil", len(errs), len(ms))
	}
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("message %d of %d: %w", i+1, len(ms), err)
		}
	}
	return fmt.Errorf("%d errors that are all nil: want nil if all messages were confirmed", len(errs))
}

// send publishes n new messages.
func (b *bench) send(n int) []*broker.Message {
	ms := b.messages(n, "")
	b.publish(ms...)
	return ms
}

const wide = 64 // a window that is larger than a case needs

// open opens a session. It is closed at the end of the case.
func (b *bench) open(window int) broker.Session {
	ctx, cancel := b.within()
	defer cancel()
	s, err := b.Source.Open(ctx, window)
	b.must("Open", err)
	if s == nil {
		b.failf("Open: a nil session without an error")
	}
	b.keep(s)
	return s
}

func (b *bench) keep(s broker.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions = append(b.sessions, s)
}

// reopen opens a session after another one broke. It retries until Open works.
func (b *bench) reopen(window int) (s broker.Session) {
	b.until("Open works again", func() bool {
		ctx, cancel := b.within()
		defer cancel()
		opened, err := b.Source.Open(ctx, window)
		s = opened
		return err == nil
	})
	b.keep(s)
	return s
}

// close closes a session.
func (b *bench) close(s broker.Session) {
	ctx, cancel := b.within()
	defer cancel()
	b.must("Close", s.Close(ctx))
}

func (b *bench) closeSessions() {
	b.mu.Lock()
	sessions := b.sessions
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b), b.harness.patience())
	defer cancel()
	for _, s := range sessions {
		s.Close(ctx) // cases check its error; the session may be closed or broken
	}
}

// receive receives up to limit messages. It fails if none comes.
func (b *bench) receive(s broker.Session, limit int) []broker.Delivery {
	ctx, cancel := b.within()
	defer cancel()
	ds, err := s.Receive(ctx, limit)
	b.must("Receive", err)
	b.sane(ds, limit)
	return ds
}

// sane checks the rules for every result of Receive.
func (b *bench) sane(ds []broker.Delivery, limit int) {
	if len(ds) < 1 || len(ds) > limit {
		b.failf("Receive returned %d deliveries, want at least 1 and at most %d", len(ds), limit)
	}
	for _, d := range ds {
		if d.Message == nil {
			b.failf("Receive returned a delivery without a message")
		}
		if d.Message.Attempt < 0 || d.Message.Attempt == 0 && !d.Redelivered {
			b.failf("the Attempt of %s is %d: they count from 1, and 0 is for what may have come before", d.Message.ID, d.Message.Attempt)
		}
	}
}

// get receives until all messages of due have come, and returns the first
// delivery of each, in the order of arrival. It fails if a message comes twice
// without being Redelivered, and if another message comes that is not in
// mayComeToo. With KeyRepeats it asks for both together, because a broker may
// give out what follows only after what came before is settled.
func (b *bench) get(s broker.Session, due []*broker.Message, mayComeToo ...*broker.Message) []broker.Delivery {
	var got []broker.Delivery
	came := make(map[string]bool)
	deadline := time.Now().Add(b.harness.patience())
	for missing := len(due); missing > 0; {
		if time.Now().After(deadline) {
			b.failf("%d of %d messages have not come within %v", missing, len(due), b.harness.patience())
		}
		most := missing
		if b.KeyRepeats {
			most += len(mayComeToo)
		}
		for _, d := range b.receive(s, most) {
			id := d.Message.ID
			switch {
			case came[id] && !d.Redelivered:
				b.failf("%s came twice, and is not Redelivered", id)
			case came[id]:
			case has(due, id):
				missing--
				came[id] = true
				got = append(got, d)
			case !has(mayComeToo, id):
				b.failf("%s came, which was settled before or never published (Redelivered %v)", id, d.Redelivered)
			}
		}
	}
	return got
}

func has(ms []*broker.Message, id string) bool {
	return slices.ContainsFunc(ms, func(m *broker.Message) bool { return m.ID == id })
}

// nothing fails if a message comes.
func (b *bench) nothing(s broker.Session, why string) {
	ctx, cancel := context.WithTimeout(b, b.harness.quiet())
	defer cancel()
	ds, err := s.Receive(ctx, wide)
	if len(ds) > 0 {
		b.failf("%s, and %s came", why, ids(ds))
	}
	if err == nil {
		b.failf("Receive returned nothing, and no error")
	}
	if ctx.Err() == nil {
		b.failf("Receive: %v", err)
	}
}

func (b *bench) ack(s broker.Session, ds ...broker.Delivery) {
	ctx, cancel := b.within()
	defer cancel()
	b.must("Ack", s.Ack(ctx, ds))
}

// wantSettled checks that settled messages do not come again, in this session
// or the next. It publishes another message and waits for it, and then for some
// time.
func (b *bench) wantSettled(s broker.Session, why string) {
	next := b.send(1)
	b.ack(s, b.get(s, next)...)
	b.nothing(s, why)
	b.close(s)
	s = b.open(wide)
	next = b.send(1)
	b.ack(s, b.get(s, next)...)
	b.nothing(s, why)
}

func ids(ds []broker.Delivery) string {
	var names []string
	for _, d := range ds {
		names = append(names, d.Message.ID)
	}
	return strings.Join(names, " ")
}
