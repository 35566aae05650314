package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestNATSConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := offices.StartNATS(t)
	brokertest.Run(t, natsHarness(s.Restart, s))
}

// A killed server has not stored what it has delivered.
func TestNATSConformanceWhenKilled(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := startNATSProcess(t)
	for _, c := range brokertest.Cases(natsHarness(s.Restart, s)) {
		if !strings.HasPrefix(c.Name, "restart/") {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if _, err := c.Check(t); err != nil {
				t.Error(err)
			}
		})
	}
}

func natsHarness[S interface{ URL() string }](restart func(testing.TB), s S) brokertest.Harness {
	return brokertest.Harness{
		Confirms: true,
		Restart:  restart,
		Patience: natsPatience,
		Fresh: func(tb testing.TB) brokertest.Place {
			js := dialNATS(tb, s)
			dead := newNATSPlace(tb, js, nil)
			p := newNATSPlace(tb, js, &natsbroker.Options{DeadLetter: dead.topic}, natsAckWait(2*time.Second))
			pub := p.Publisher()
			tb.Cleanup(func() { pub.Close() })
			return brokertest.Place{
				Publisher: pub, Source: p.source, Topic: p.topic, Unroutable: "nobody.takes.this",
				DeadLetters: func(tb testing.TB) []*broker.Message { return deadNATSLetters(tb, dead) },
			}
		},
	}
}

// deadNATSLetters returns all messages of a stream.
func deadNATSLetters(tb testing.TB, dead *natsPlace) []*broker.Message {
	tb.Helper()
	stream, err := dead.js.Stream(natsContext(tb), dead.stream)
	if err != nil {
		tb.Fatal(err)
	}
	s := dead.open(tb, 100)
	defer s.Close(context.Background())
	var ms []*broker.Message
	for _, d := range receive(tb, s, int(stream.CachedInfo().State.Msgs)) {
		ms = append(ms, d.Message)
	}
	return ms
}

func TestNATSServerStartsAgain(t *testing.T) {
	server := offices.StartNATS(t)
	js := dialNATS(t, server)
	p := newNATSPlace(t, js, nil, natsAckWait(2*time.Second))
	p.publish(t, 10)
	s := p.open(t, 10)
	ds := receive(t, s, 5)
	if err := s.Ack(t.Context(), ds[:2]); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	proof.Await(t, "the client is connected again", func() bool { return js.Conn().Stats().Reconnects > 0 && js.Conn().IsConnected() })

	// The session continues, and its deliveries in flight can be settled.
	if err := s.Ack(t.Context(), ds[2:]); err != nil {
		t.Fatal(err)
	}
	rest := receive(t, s, 5)
	for i, d := range rest {
		if want := p.message(5 + i).ID; d.Message.ID != want {
			t.Errorf("after the restart came %s, want %s", d.Message.ID, want)
		}
	}
	if err := s.Ack(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	receiveNothing(t, s, 3*time.Second)
}

func TestNATSSlowHandlerKeepsItsMessage(t *testing.T) {
	server := offices.StartNATS(t)
	p := newNATSPlace(t, dialNATS(t, server), nil, natsAckWait(600*time.Millisecond))
	p.publish(t, 2)
	mine := dialNATS(t, server)
	slow, err := natsbroker.New(mine, nil).Consumer(p.stream, "billing").Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	ds := receive(t, slow, 1) // the other one may be with the session too, and stays there
	other := p.open(t, 10)
	receiveNothing(t, slowOnly(t, slow, other), 2*time.Second)

	mine.Conn().Close() // as when its process dies: nobody says anything any more
	again := receive(t, other, 2)
	for _, d := range again {
		if d.Message.ID == ds[0].Message.ID && (!d.Redelivered || d.Message.Attempt != 2) {
			t.Errorf("it came again as attempt %d, Redelivered %v", d.Message.Attempt, d.Redelivered)
		}
	}
	if err := slow.Ack(t.Context(), ds); err == nil {
		t.Error("Ack of a session whose connection was closed: no error")
	}
	if _, err := slow.Receive(t.Context(), 1); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Receive of a session whose connection was closed: %v", err)
	}
}

// slowOnly receives the message that may have gone to either session, and
// returns the session to watch.
func slowOnly(tb testing.TB, slow, other broker.Session) broker.Session {
	tb.Helper()
	receive(tb, slow, 1)
	return other
}

func TestNATSKeepsToTheWindow(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	p.publish(t, 10)
	s := p.open(t, 3)
	ds := receive(t, s, 3)
	receiveNothing(t, s, 300*time.Millisecond)
	if pending := p.consumer(t).NumAckPending; pending != 3 {
		t.Errorf("%d deliveries are pending at the server, the window is 3", pending)
	}
	if err := s.Return(t.Context(), ds[:1], time.Hour); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, s, 1)[0]; d.Message.ID != p.message(3).ID {
		t.Errorf("room for one more, and %s came", d.Message.ID)
	}
}

func (p *natsPlace) consumer(tb testing.TB) *jetstream.ConsumerInfo {
	tb.Helper()
	c, err := p.js.Consumer(natsContext(tb), p.stream, "billing")
	if err != nil {
		tb.Fatal(err)
	}
	return c.CachedInfo()
}

// Messages that arrive after Receive has returned are kept for the next
// Receive, and returned by Close.
func TestNATSLosesNothingBetweenReceives(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil, natsAckWait(time.Hour))
	s := p.open(t, 10)
	receiveNothing(t, s, 100*time.Millisecond) // leaves a request for ten messages behind
	p.publish(t, 10)
	proof.Await(t, "the messages have come to the session", func() bool { return p.consumer(t).NumAckPending == 10 })
	if d := receive(t, s, 1)[0]; d.Message.ID != p.message(0).ID || d.Redelivered {
		t.Errorf("%+v", d)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The hour has not passed.
	for i, d := range receive(t, p.open(t, 10), 10) {
		if want := p.message(i).ID; d.Message.ID != want || !d.Redelivered {
			t.Errorf("after Close came %s, Redelivered %v, want %s", d.Message.ID, d.Redelivered, want)
		}
	}
}

func TestNATSForeignMessage(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	before := time.Now().Add(-time.Second)
	for _, m := range []*nats.Msg{
		{Subject: p.topic, Data: []byte("bare")},
		{Subject: p.topic, Header: nats.Header{"Status": {"503"}, "Content-Type": {"text/plain", "last"}, "X": {"upper"},
			"x": {"lower"}, "Once-Time": {"yesterday"}}},
	} {
		if _, err := p.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	s := p.open(t, 10)
	ds := receive(t, s, 2)
	for _, d := range ds {
		if d.Message.ID != "" || d.Message.Topic != p.topic || d.Message.Time.Before(before) {
			t.Errorf("%+v", d.Message)
		}
	}
	if h := ds[1].Message.Header; h["status"] != "503" || h["content-type"] != "last" || h["x"] != "lower" || len(h) != 3 {
		t.Errorf("headers %v", h)
	}
	if err := s.Ack(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
}

func TestNATSKeepsSpacesAroundValues(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	var ms []*broker.Message
	for _, id := range []string{"id", " id", "id ", "%20id", "日本 "} {
		ms = append(ms, &broker.Message{ID: id, Topic: p.topic, OrderingKey: id, Header: map[string]string{"a": id, "b": ""}})
	}
	if errs := p.Publisher().Publish(t.Context(), ms); errs != nil {
		t.Fatal(errs)
	}
	for i, d := range receive(t, p.open(t, 10), len(ms)) {
		m, want := d.Message, ms[i]
		if m.ID != want.ID || m.OrderingKey != want.ID || m.Header["a"] != want.ID || len(m.Header) != 2 {
			t.Errorf("%+v, want %+v", m, want)
		}
	}
}

// The old session must not deliver messages of the new stream, whether it waits
// at that time or its window is full.
func TestNATSSessionDetectsARecreatedStream(t *testing.T) {
	for name, full := range map[string]bool{"waiting": false, "full": true} {
		t.Run(name, func(t *testing.T) {
			p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
			p.publish(t, 1)
			window := 10
			if full {
				window = 1
			}
			s := p.open(t, window)
			ds := receive(t, s, 1)
			ended := make(chan error, 1)
			if !full {
				go func() { ended <- natsReceiveEnds(s) }()
			}
			if err := p.js.DeleteStream(t.Context(), p.stream); err != nil {
				t.Fatal(err)
			}
			p.create(t)
			if errs := p.Publisher().Publish(t.Context(), []*broker.Message{{ID: "new", Topic: p.topic}}); errs != nil {
				t.Fatal(errs)
			}
			if full {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				s.Ack(ctx, ds)
				cancel()
				go func() { ended <- natsReceiveEnds(s) }()
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(natsPatience):
				t.Fatal("the session does not end")
			}
			s.Close(t.Context())
			receive(t, p.open(t, 1), 1)
		})
	}
}

// natsReceiveEnds fails if a message comes before the session breaks.
func natsReceiveEnds(s broker.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), natsPatience)
	defer cancel()
	ds, err := s.Receive(ctx, 10)
	if err == nil || ctx.Err() != nil {
		return fmt.Errorf("%d deliveries came, error %v", len(ds), err)
	}
	return nil
}

func TestNATSSessionDetectsADeletedConsumer(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	p.publish(t, 1)
	s := p.open(t, 10)
	ds := receive(t, s, 1)
	ended := make(chan error, 1)
	go func() { ended <- natsReceiveEnds(s) }()
	proof.Await(t, "Receive waits", func() bool { return p.consumer(t).NumWaiting > 0 })
	if err := p.js.DeleteConsumer(t.Context(), p.stream, "billing"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Ack(t.Context(), ds); err == nil {
		t.Error("Ack without a consumer: no error")
	}
	if _, err := p.source.Open(t.Context(), 1); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("Open without a consumer: %v", err)
	}
}

func TestNATSRefusesConsumersThatLose(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	for name, spoil := range map[string]func(*jetstream.ConsumerConfig){
		"explicit":          func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy },
		"MaxDeliver":        func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"BackOff":           func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{time.Second} },
		"InactiveThreshold": func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour },
		"HeadersOnly":       func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"priority": func(c *jetstream.ConsumerConfig) {
			c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL = jetstream.PriorityPolicyPinned, []string{"a"}, time.Second
		},
	} {
		p := newNATSPlace(t, js, nil, func(_ *jetstream.StreamConfig, c *jetstream.ConsumerConfig) { spoil(c) })
		if _, err := p.source.Open(t.Context(), 1); !errors.Is(err, broker.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := newNATSPlace(t, js, nil)
	for dead, want := range map[string]string{p.topic: "another stream", "nobody.takes.it": "find a stream", "a..b": "subject"} {
		b := natsbroker.New(js, &natsbroker.Options{DeadLetter: dead})
		if _, err := b.Consumer(p.stream, "billing").Open(t.Context(), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("dead letters to %q: %v", dead, err)
		}
	}
	if err := p.DeclareConsumer(t.Context(), p.stream, "declared", p.topic); err != nil {
		t.Fatal(err)
	}
	if err := p.DeclareConsumer(t.Context(), p.stream, "billing", p.topic); err != nil {
		t.Errorf("a consumer that is there with other settings: %v", err)
	}
	s, err := p.Consumer(p.stream, "declared").Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Close(t.Context())
}

func TestNATSHorizon(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	for _, age := range []time.Duration{0, time.Hour} {
		p := newNATSPlace(t, js, nil, func(s *jetstream.StreamConfig, _ *jetstream.ConsumerConfig) { s.MaxAge = age })
		if got, err := p.source.(broker.Horizon).RedeliveryHorizon(t.Context()); got != age || err != nil {
			t.Errorf("%v (%v), want %v", got, err, age)
		}
	}
}

// Extending the deadlines of other deliveries must not change a delay.
func TestNATSDelayIsKept(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil, natsAckWait(300*time.Millisecond))
	p.publish(t, 2)
	s := p.open(t, 10)
	ds := receive(t, s, 2)
	start := time.Now()
	if err := s.Return(t.Context(), ds[:1], 1500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	again := receive(t, s, 1)[0]
	passed, m := time.Since(start), again.Message
	if passed < 1500*time.Millisecond || m.ID != ds[0].Message.ID || m.Attempt != 2 {
		t.Errorf("after %v came %s, attempt %d", passed, m.ID, m.Attempt)
	}
	if err := s.Ack(t.Context(), append(ds[1:], again)); err != nil {
		t.Error(err)
	}
	if err := s.Ack(t.Context(), ds[:1]); err == nil {
		t.Error("a delivery that was returned was acknowledged")
	}
}

// A stream that has seen the message must not drop its dead letter as a
// duplicate, also the second time.
func TestNATSDeadLetterIsNoDuplicate(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	dead := newNATSPlace(t, js, nil)
	p := newNATSPlace(t, js, &natsbroker.Options{DeadLetter: dead.topic})
	m := p.message(0)
	ds := []*broker.Message{m, {ID: m.ID, Topic: dead.topic}} // its ID is known in both streams
	if errs := p.Publisher().Publish(t.Context(), ds); errs != nil {
		t.Fatal(errs)
	}
	s := p.open(t, 1)
	if !s.(broker.DeadLetterer).KeepsRejected() {
		t.Error("KeepsRejected is false")
	}
	if err := s.Reject(t.Context(), receive(t, s, 1), " two\nlines "+strings.Repeat("é", 1000)); err != nil {
		t.Fatal(err)
	}
	letters := deadNATSLetters(t, dead)
	if len(letters) != 2 {
		t.Fatalf("%d messages in the stream of dead letters, want the one that was published there, and the rejected one",
			len(letters))
	}
	l := letters[1]
	if l.ID != m.ID || string(l.Body) != string(m.Body) || !strings.HasPrefix(l.Header["once-reason"], "two lines é") ||
		l.Header["once-topic"] != m.Topic || l.Header["once-origin"] != p.stream+"@1" {
		t.Errorf("%+v", l)
	}
	receiveNothing(t, s, 300*time.Millisecond)
}

// A settlement that fails because the server cannot be asked does not keep the
// message in a session that stays open.
func TestNATSRedeliversWhatCouldNotBeSettled(t *testing.T) {
	server := startNATSProcess(t)
	p := newNATSPlace(t, dialNATS(t, server), nil, natsAckWait(2*time.Second))
	p.publish(t, 4)
	s := p.open(t, 4)
	ds := receive(t, s, 4)
	server.Kill()
	settle := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return do(ctx)
	}
	// The first Ack may be sent. A later one either looks the consumer up or
	// reports that the delivery was settled.
	probe := func(ctx context.Context) error { return s.Ack(ctx, ds[:1]) }
	settle(probe)
	proof.Await(t, "the session looks the consumer up before it settles", func() bool {
		return errors.Is(settle(probe), context.DeadlineExceeded)
	})
	for name, do := range map[string]func(context.Context) error{
		"Ack":    func(ctx context.Context) error { return s.Ack(ctx, ds[1:2]) },
		"Return": func(ctx context.Context) error { return s.Return(ctx, ds[2:3], 0) },
		"Reject": func(ctx context.Context) error { return s.Reject(ctx, ds[3:], "no use") },
	} {
		if err := settle(do); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s without a server: %v", name, err)
		}
	}
	server.Start(t)

	missing := map[string]bool{p.message(1).ID: true, p.message(2).ID: true, p.message(3).ID: true}
	for len(missing) > 0 {
		again := receive(t, s, 1)
		delete(missing, again[0].Message.ID)
		if err := s.Ack(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	}
}

// A message whose dead letter cannot be stored leaves those that are rejected with
// it: they are gone, with one dead letter each.
func TestNATSOneDeadLetterThatFailsLeavesTheOthers(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	dead := newNATSPlace(t, js, nil, func(s *jetstream.StreamConfig, _ *jetstream.ConsumerConfig) { s.MaxMsgSize = 10_000 })
	p := newNATSPlace(t, js, &natsbroker.Options{DeadLetter: dead.topic}, natsAckWait(time.Second))
	ms := p.messages(3)
	ms[1].Body = make([]byte, 20_000)
	publish(t, p.Publisher(), ms...)
	s := p.open(t, 3)
	ds := receive(t, s, 3)
	for range 2 { // also if the consumer tries again
		if err := s.Reject(t.Context(), ds, "no use"); err == nil {
			t.Error("a dead letter that is too large for its stream: no error")
		}
	}
	if letters := deadNATSLetters(t, dead); len(letters) != 2 {
		t.Errorf("%d dead letters, want 2", len(letters))
	}
	if again := receive(t, s, 1); again[0].Message.ID != ms[1].ID {
		t.Errorf("%s comes again, want the message without a dead letter", again[0].Message.ID)
	}
	receiveNothing(t, s, 1500*time.Millisecond)
}

// A rejected message without its dead letter stays with the session for AckWait,
// so that Reject can be repeated, and then comes again.
func TestNATSFailedDeadLetterComesAgain(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	for name, wait := range map[string]time.Duration{"repeated": time.Hour, "redelivered": 600 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			dead := newNATSPlace(t, js, nil)
			p := newNATSPlace(t, js, &natsbroker.Options{DeadLetter: dead.topic}, natsAckWait(wait))
			p.publish(t, 1)
			s := p.open(t, 1)
			ds := receive(t, s, 1)
			if err := js.DeleteStream(t.Context(), dead.stream); err != nil {
				t.Fatal(err)
			}
			if err := s.Reject(t.Context(), ds, "no use"); err == nil {
				t.Fatal("Reject without a stream for dead letters: no error")
			}
			dead.create(t)
			if name == "redelivered" {
				ds = receive(t, s, 1)
			}
			if err := s.Reject(t.Context(), ds, "no use"); err != nil {
				t.Fatal(err)
			}
			if letters := deadNATSLetters(t, dead); len(letters) != 1 {
				t.Errorf("%d dead letters, want 1", len(letters))
			}
		})
	}
}

func TestNATSUnconfirmedAcks(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), &natsbroker.Options{UnconfirmedAcks: true})
	p.publish(t, 3)
	s := p.open(t, 3)
	ds := receive(t, s, 3)
	if err := errors.Join(s.Ack(t.Context(), ds[:1]), s.Reject(t.Context(), ds[1:2], "no use"),
		s.Return(t.Context(), ds[2:], 0)); err != nil {
		t.Fatal(err)
	}
	again := receive(t, s, 1)
	if again[0].Message.ID != ds[2].Message.ID {
		t.Errorf("%s came again", again[0].Message.ID)
	}
	if err := s.Ack(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	proof.Await(t, "nothing is pending", func() bool { return p.consumer(t).NumAckPending == 0 })
}

// 16 goroutines settle what one receives, and each message is settled once.
func TestNATSSettleConcurrently(t *testing.T) {
	const n = 300
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	p.publish(t, n)
	s := p.open(t, 50)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for range n {
		d := receive(t, s, 1)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.Ack(t.Context(), d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if info := p.consumer(t); info.NumAckPending != 0 || info.NumRedelivered != 0 || info.AckFloor.Stream != n {
		t.Errorf("%d pending, %d redelivered, floor %d", info.NumAckPending, info.NumRedelivered, info.AckFloor.Stream)
	}
}
