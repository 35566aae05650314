package group

import (
	"testing"

	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
)

// came is a partition at an offset, with messages that came.
func came(from int64, n int) *Partition {
	p := newPartition(cluster.Place{Topic: "t"}, "t#1")
	p.Lane.Rewind(from, nil)
	for range n {
		p.Lane.Add(p.Lane.Next(), Taken{From: p})
	}
	return p
}

func TestAMarkReachesAheadUnlessItIsTheLast(t *testing.T) {
	p := came(5, 3)
	p.old = 7
	if m := p.mark(100); m != (cluster.Mark{Offset: 5, Reach: 108, Log: "t#1"}) {
		t.Error(m)
	}
	if m := p.mark(0); m != (cluster.Mark{Offset: 5, Reach: 7, Log: "t#1"}) {
		t.Error(m)
	}
}

// What lies below the reach that is noted may be handed out while the next commit is on its way.
func TestTheReachNeverGoesBack(t *testing.T) {
	p := came(50, 3)
	p.note(p.mark(100))
	p.Lane.Rewind(0, nil)
	if m := p.mark(100); m.Offset != 0 || m.Reach != 153 {
		t.Errorf("after going back to the first message: %+v", m)
	}
}

func TestNothingIsHandedOutBeyondWhatIsNoted(t *testing.T) {
	p := came(0, 2)
	if !p.lacks() || p.Lane.Limit != 0 {
		t.Error("a partition that nothing was said of hands messages out")
	}
	p.note(cluster.Mark{Reach: 1})
	if !p.lacks() || p.Lane.Limit != 1 {
		t.Error("the second message is not noted")
	}
	p.note(cluster.Mark{Reach: 2})
	if p.lacks() || p.Lane.Limit != 2 {
		t.Error("both messages are noted")
	}
	if p = came(0, 0); p.lacks() {
		t.Error("a commit is wanted, and nothing came")
	}
}

func TestAgain(t *testing.T) {
	p := came(0, 3)
	p.old = 2
	if !p.Again(1) || p.Again(2) {
		t.Error("the first two may have been handed out before")
	}
}
