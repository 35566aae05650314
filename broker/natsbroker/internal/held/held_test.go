package held_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker/natsbroker/internal/held"
	"github.com/nats-io/nats.go"
)

// add is a delivery of a place in the stream, as a consumer counts it.
func add(s *held.Set, seq, count, delivered uint64) (rises bool) {
	meta := &nats.MsgMetadata{NumDelivered: delivered, Sequence: nats.SequencePair{Stream: seq, Consumer: count}}
	return s.Add(&nats.Msg{Reply: "ack " + string(rune('a'+count))}, meta, time.Unix(int64(count), 0))
}

func TestTheWindowCountsWhatWasTaken(t *testing.T) {
	s := held.New(3)
	for i := range uint64(4) {
		add(s, i+1, i+1, 1)
	}
	if s.Room() != 3 || s.Waiting() != 4 {
		t.Errorf("room for %d, %d wait, want 3 and 4", s.Room(), s.Waiting())
	}
	as := s.Take(2)
	if len(as) != 2 || as[0].Seq() != 1 || as[1].Seq() != 2 || s.Room() != 1 || s.Waiting() != 2 {
		t.Errorf("%d were taken, room for %d, %d wait", len(as), s.Room(), s.Waiting())
	}
	s.Settle(as[:1])
	if s.Has(as[0]) || !s.Has(as[1]) || s.Room() != 2 {
		t.Errorf("room for %d, want 2", s.Room())
	}
	if all := s.All(); len(all) != 3 || all[0].Seq() != 2 || all[2].Seq() != 4 {
		t.Errorf("%d are not settled, want 3 in their order", len(all))
	}
	if left := s.Clear(); len(left) != 3 || s.Room() != 3 || len(s.Take(9)) != 0 {
		t.Errorf("%d were left", len(left))
	}
}

func TestWhatComesAgainIsTold(t *testing.T) {
	s := held.New(9)
	add(s, 5, 1, 1)
	add(s, 6, 2, 2)
	add(s, 4, 3, 1) // behind what came later, and counted from 1: the server has forgotten
	for i, a := range s.Take(9) {
		if want := i > 0; a.Again != want {
			t.Errorf("the sequence %d comes again: %v, want %v", a.Seq(), a.Again, want)
		}
	}
}

func TestWhatComesAgainWhileItIsHeldIsSettledWithIt(t *testing.T) {
	s := held.New(9)
	add(s, 1, 1, 1)
	a := s.Take(1)[0]
	add(s, 1, 2, 2)
	if s.Waiting() != 0 || !s.Has(a) || a.Reply != "ack c" || !a.Signed.Equal(time.Unix(2, 0)) {
		t.Errorf("%d wait, settled at %q, signed %v", s.Waiting(), a.Reply, a.Signed)
	}
}

func TestACountThatWentBackIsTold(t *testing.T) {
	s := held.New(9)
	if !add(s, 1, 1, 1) || !add(s, 2, 3, 1) || add(s, 3, 3, 1) || add(s, 4, 1, 1) || !add(s, 5, 2, 1) {
		t.Error("it is not told from one that rises")
	}
}
