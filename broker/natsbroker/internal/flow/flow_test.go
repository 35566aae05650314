package flow

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// numbered is a message of which only the number is known.
type numbered struct {
	jetstream.Msg
	seq uint64
}

func (m numbered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Consumer: "c", Sequence: jetstream.SequencePair{Stream: m.seq}}, nil
}

// slow takes a message when it is told to.
type slow struct {
	begun  chan uint64
	goOn   chan struct{}
	broken chan error
}

func (s slow) Take(_ *Flow, _ jetstream.Msg, meta *jetstream.MsgMetadata) {
	s.begun <- meta.Sequence.Stream
	<-s.goOn
}

func (s slow) Broken(_ *Flow, err error) { s.broken <- err }

func newFlow() (*Flow, slow) {
	f := &Flow{consumer: "c"}
	f.Context, f.cancel = context.WithCancel(context.Background())
	return f, slow{make(chan uint64, 2), make(chan struct{}), make(chan error, 1)}
}

// A client that begins anew calls for the next message while the call for the one before still waits for room.
func TestMessagesAreTakenOneAtATime(t *testing.T) {
	f, s := newFlow()
	ended := make(chan struct{}, 2)
	take := func(seq uint64) {
		f.take(numbered{seq: seq}, s)
		ended <- struct{}{}
	}
	go take(1)
	if seq := <-s.begun; seq != 1 {
		t.Fatalf("number %d was taken first", seq)
	}
	if f.taking.TryLock() {
		t.Fatal("another message could be taken meanwhile")
	}
	go take(2)
	s.goOn <- struct{}{}
	if seq := <-s.begun; seq != 2 {
		t.Errorf("number %d was taken second", seq)
	}
	s.goOn <- struct{}{}
	<-ended
	<-ended
}

// What comes behind a later message would be lost to a consumer that goes by positions: the session has to begin anew.
func TestAMessageThatWasOvertakenBreaksTheFlow(t *testing.T) {
	f, s := newFlow()
	close(s.goOn)
	f.take(numbered{seq: 5}, s)
	f.take(numbered{seq: 4}, s)
	select {
	case <-s.broken:
	default:
		t.Error("the flow goes on")
	}
	if f.Err() == nil || len(s.begun) != 1 {
		t.Errorf("%d messages were taken, and the flow has ended with %v", len(s.begun), f.Err())
	}
}
