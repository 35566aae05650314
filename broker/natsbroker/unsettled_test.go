package natsbroker

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// addTo adds a delivery of a sequence in the stream, as a consumer counts it.
func addTo(s *unsettled, seq, count, delivered uint64) (rises bool) {
	meta := &nats.MsgMetadata{NumDelivered: delivered, Sequence: nats.SequencePair{Stream: seq, Consumer: count}}
	return s.add(&nats.Msg{Reply: "ack " + string(rune('a'+count))}, meta, time.Unix(int64(count), 0))
}

func TestTheWindowLimitsTakenDeliveries(t *testing.T) {
	s := newUnsettled(3)
	for i := range uint64(4) {
		addTo(s, i+1, i+1, 1)
	}
	if s.room() != 3 || s.waitingCount() != 4 {
		t.Errorf("room for %d, %d wait, want 3 and 4", s.room(), s.waitingCount())
	}
	as := s.take(2)
	if len(as) != 2 || as[0].seq() != 1 || as[1].seq() != 2 || s.room() != 1 || s.waitingCount() != 2 {
		t.Errorf("%d were taken, room for %d, %d wait", len(as), s.room(), s.waitingCount())
	}
	s.settle(as[:1])
	if s.has(as[0]) || !s.has(as[1]) || s.room() != 2 {
		t.Errorf("room for %d, want 2", s.room())
	}
	if all := s.sorted(); len(all) != 3 || all[0].seq() != 2 || all[2].seq() != 4 {
		t.Errorf("%d are not settled, want 3 in their order", len(all))
	}
	if left := s.clear(); len(left) != 3 || s.room() != 3 || len(s.take(9)) != 0 {
		t.Errorf("%d were left", len(left))
	}
}

func TestARepeatedDeliveryIsRedelivered(t *testing.T) {
	s := newUnsettled(9)
	addTo(s, 5, 1, 1)
	addTo(s, 6, 2, 2)
	addTo(s, 4, 3, 1) // after later messages, and counted from 1: the server has forgotten
	for i, a := range s.take(9) {
		if want := i > 0; a.redelivered != want {
			t.Errorf("the sequence %d comes again: %v, want %v", a.seq(), a.redelivered, want)
		}
	}
}

func TestADeliveryDuringTheWorkIsSettledWithIt(t *testing.T) {
	s := newUnsettled(9)
	addTo(s, 1, 1, 1)
	a := s.take(1)[0]
	addTo(s, 1, 2, 2)
	if s.waitingCount() != 0 || !s.has(a) || a.reply != "ack c" || !a.extended.Equal(time.Unix(2, 0)) {
		t.Errorf("%d wait, settled at %q, signed %v", s.waitingCount(), a.reply, a.extended)
	}
}

func TestAReleasedDeliveryCanBeSettledUntilAckWaitHasPassed(t *testing.T) {
	s := newUnsettled(2)
	addTo(s, 1, 1, 1)
	addTo(s, 2, 2, 1)
	as := s.take(2)
	s.release(as[:1])
	if s.dropReleased(time.Unix(3, 0), 3*time.Second) || !s.has(as[0]) || s.room() != 0 {
		t.Errorf("before AckWait has passed there is room for %d, want 0", s.room())
	}
	if !s.dropReleased(time.Unix(4, 0), 3*time.Second) || s.has(as[0]) || !s.has(as[1]) || s.room() != 1 {
		t.Errorf("after AckWait there is room for %d, want 1", s.room())
	}
}

func TestAReleasedDeliveryComesAgain(t *testing.T) {
	s := newUnsettled(9)
	addTo(s, 1, 1, 1)
	first := s.take(1)
	s.release(first)
	addTo(s, 1, 2, 2)
	again := s.take(1)
	if len(again) != 1 || !again[0].redelivered || !s.has(again[0]) || s.has(first[0]) {
		t.Errorf("%d came again, want 1", len(again))
	}
}

func TestAConsumerSequenceThatWentBackIsReported(t *testing.T) {
	s := newUnsettled(9)
	if !addTo(s, 1, 1, 1) || !addTo(s, 2, 3, 1) || addTo(s, 3, 3, 1) || addTo(s, 4, 1, 1) || !addTo(s, 5, 2, 1) {
		t.Error("it is not told from one that rises")
	}
}
