package brokers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/memstore"
	"github.com/nats-io/nats.go/jetstream"
)

// natsLog opens the log of a place.
func natsLog(tb testing.TB, js jetstream.JetStream, p *natsPlace, window int) broker.Session {
	tb.Helper()
	s, err := natsbroker.New(js, nil).Log(p.stream, "readers").Open(natsContext(tb), window)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// natsRead receives and acknowledges, and fails if the offsets do not rise from
// one to the next.
func natsRead(tb testing.TB, s broker.Session, n int) (offsets []int64) {
	tb.Helper()
	for len(offsets) < n {
		ds, err := s.Receive(natsContext(tb), n-len(offsets))
		if err != nil {
			tb.Fatal(err)
		}
		for _, d := range ds {
			if last := len(offsets) - 1; last >= 0 && d.Position.Offset <= offsets[last] {
				tb.Fatalf("offset %d comes behind %v", d.Position.Offset, offsets)
			}
			offsets = append(offsets, d.Position.Offset)
		}
		if err := s.Ack(natsContext(tb), ds); err != nil {
			tb.Fatal(err)
		}
	}
	return offsets
}

func TestNATSLogIsReadInOrderFromWhereItIsSought(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	p := newNATSPlace(t, js, nil)
	p.publish(t, 50)
	s := natsLog(t, js, p, 7)
	if got := natsRead(t, s, 50); got[0] != 1 || got[49] != 50 {
		t.Fatal(got)
	}
	receiveNothing(t, s, 200*time.Millisecond)
	ds := receive(t, natsLog(t, js, p, 1), 1)
	at := *ds[0].Position
	for _, offset := range []int64{-1, 0, 20, 49} {
		at.Offset = offset
		if err := s.(broker.Seeker).Seek(natsContext(t), at); err != nil {
			t.Fatal(err)
		}
		first := max(offset, 0) + 1
		if got := natsRead(t, s, int(50-first+1)); got[0] != first || got[len(got)-1] != 50 {
			t.Errorf("behind %d: %v", offset, got)
		}
	}
	at.Log = "another"
	if err := s.(broker.Seeker).Seek(natsContext(t), at); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
}

func TestNATSLogKeepsItsWindowAndGivesBackWhatIsReturned(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	p := newNATSPlace(t, js, nil)
	p.publish(t, 5)
	s := natsLog(t, js, p, 3)
	ds := receive(t, s, 3)
	receiveNothing(t, s, 200*time.Millisecond)
	begun := time.Now()
	if err := s.Return(natsContext(t), ds[:1], 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, s, 1); got[0].Position.Offset != 4 {
		t.Error(got[0].Position)
	}
	if err := s.Ack(natsContext(t), ds[1:]); err != nil {
		t.Fatal(err)
	}
	again := receive(t, s, 2)
	if again[0].Position.Offset != 5 || again[1].Position.Offset != 1 || again[1].Message.Attempt != 2 || time.Since(begun) < 300*time.Millisecond {
		t.Error(again, time.Since(begun))
	}
	if err := s.Ack(natsContext(t), ds[:1]); err == nil {
		t.Error("what was returned could be acknowledged")
	}
}

func TestNATSLogSurvivesItsServer(t *testing.T) {
	server := offices.StartNATS(t)
	js := dialNATS(t, server)
	p := newNATSPlace(t, js, nil)
	p.publish(t, 20)
	s := natsLog(t, js, p, 100)
	natsRead(t, s, 10)
	server.Restart(t)
	source := natsbroker.New(js, nil).Log(p.stream, "readers")
	for read := 0; read < 10; { // in this session, or in the next one
		ds, err := s.Receive(natsContext(t), 10)
		if err != nil {
			proof.Await(t, "another session", func() bool {
				s, err = source.Open(natsContext(t), 100)
				return err == nil
			})
			continue
		}
		for _, d := range ds {
			if d.Position.Offset > 10 {
				read++
			}
		}
	}
}

// Messages of a recreated stream have the same sequences as earlier ones.
func TestNATSLogDetectsARecreatedStream(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	p := newNATSPlace(t, js, nil)
	p.publish(t, 10)
	s := natsLog(t, js, p, 100)
	natsRead(t, s, 10)
	if err := js.DeleteStream(natsContext(t), p.stream); err != nil {
		t.Fatal(err)
	}
	p.create(t)
	p.publish(t, 20)
	for {
		ds, err := s.Receive(natsContext(t), 10)
		if err != nil {
			break
		}
		t.Fatalf("%d messages of another stream, the first at %v", len(ds), ds[0].Position)
	}
}

func TestNATSLogUnderACheckpoint(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	p := newNATSPlace(t, js, nil)
	store := memstore.New(nil)
	consumer := func() *inbox.Consumer {
		return &inbox.Consumer{Name: "readers", Source: natsbroker.New(js, nil).Log(p.stream, "readers"), Checkpoint: true, Stats: new(inbox.Stats),
			Handler: inbox.Tx(store, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
				had, _ := tx.Get("read")
				tx.Set("read", had+"*")
				return nil
			})}
	}
	refused := consumer()
	refused.Checkpoint = false
	if err := refused.Run(t.Context()); err == nil {
		t.Error("a consumer without positions would read everything again with each session")
	}
	read := func() int { v, _ := store.Value("read"); return len(v) }
	run := func(c *inbox.Consumer) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	written := 0
	write := func() {
		t.Helper()
		ms := p.messages(written + 100)[written:]
		written += 100
		if errs := p.Publisher().Publish(natsContext(t), ms); errs != nil {
			t.Fatal(errs)
		}
	}
	write()
	first, second := consumer(), consumer()
	stop := run(first)
	proof.Await(t, "a hundred", func() bool { return read() == 100 })
	defer run(second)() // both go on from here
	write()
	proof.Await(t, "two hundred", func() bool { return read() == 200 })
	stop()
	write() // the other one notices that nobody else is at work
	proof.Await(t, "three hundred", func() bool { return read() == 300 })
	if second.Stats.Handled.Load() == 0 {
		t.Error("the second did nothing, and yet all is read")
	}
}

// A stream that drops what its consumers have acknowledged would drop what a log,
// which is none of them, has not read.
func TestNATSLogRefusesStreamsThatDropWhatOthersHaveRead(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	for _, kept := range []jetstream.RetentionPolicy{jetstream.InterestPolicy, jetstream.WorkQueuePolicy} {
		p := newNATSPlace(t, js, nil, func(s *jetstream.StreamConfig, _ *jetstream.ConsumerConfig) { s.Retention = kept })
		p.publish(t, 3)
		s, err := natsbroker.New(js, nil).Log(p.stream, "readers").Open(natsContext(t), 10)
		if err == nil {
			_ = s.Close(natsContext(t))
		}
		if !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("a log of a stream with the retention %v: %v", kept, err)
		}
		receive(t, p.open(t, 10), 3) // its consumer gets them
	}
}
