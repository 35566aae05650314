package natsbroker

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// numbered is a message that has only a sequence.
type numbered struct {
	jetstream.Msg
	seq uint64
}

func (m numbered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Consumer: "c", Sequence: jetstream.SequencePair{Stream: m.seq}}, nil
}

// slow is a handler that a test lets continue.
type slow struct {
	begun  chan uint64
	goOn   chan struct{}
	failed chan error
}

func (s slow) take(_ *streamReader, _ jetstream.Msg, meta *jetstream.MsgMetadata) {
	s.begun <- meta.Sequence.Stream
	<-s.goOn
}

func (s slow) broken(_ *streamReader, err error) { s.failed <- err }

func newReader() (*streamReader, slow) {
	f := &streamReader{consumer: "c"}
	f.Context, f.cancel = context.WithCancel(context.Background())
	return f, slow{make(chan uint64, 2), make(chan struct{}), make(chan error, 1)}
}

// A client that has restarted calls for the next message while the last call
// still waits for room.
func TestMessagesAreTakenOneAtATime(t *testing.T) {
	f, s := newReader()
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

// A consumer with positions would lose a message that comes after a later one,
// so the session must be opened again.
func TestAnOvertakenMessageBreaksTheReader(t *testing.T) {
	f, s := newReader()
	close(s.goOn)
	f.take(numbered{seq: 5}, s)
	f.take(numbered{seq: 4}, s)
	select {
	case <-s.failed:
	default:
		t.Error("the reader continues")
	}
	if f.Err() == nil || len(s.begun) != 1 {
		t.Errorf("%d messages were taken, and the reader has ended with %v", len(s.begun), f.Err())
	}
}
