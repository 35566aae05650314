package group

import (
	"testing"

	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
)

// came returns a partition at an offset, with fetched messages.
func came(from int64, n int) *Partition {
	p := newPartition(cluster.TopicPartition{Topic: "t"}, "t#1")
	p.Buffer.Reset(from, nil)
	for range n {
		p.Buffer.Add(p.Buffer.Next(), Fetched{From: p})
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

// Messages below the noted reach may be delivered during the next commit.
func TestTheReachNeverGoesBack(t *testing.T) {
	p := came(50, 3)
	p.note(p.mark(100))
	p.Buffer.Reset(0, nil)
	if m := p.mark(100); m.Offset != 0 || m.Reach != 153 {
		t.Errorf("after going back to the first message: %+v", m)
	}
}

func TestNothingIsHandedOutBeyondWhatIsNoted(t *testing.T) {
	p := came(0, 2)
	if !p.needsReach() || p.Buffer.Limit != 0 {
		t.Error("a partition that nothing was said of hands messages out")
	}
	p.note(cluster.Mark{Reach: 1})
	if !p.needsReach() || p.Buffer.Limit != 1 {
		t.Error("the second message is not noted")
	}
	p.note(cluster.Mark{Reach: 2})
	if p.needsReach() || p.Buffer.Limit != 2 {
		t.Error("both messages are noted")
	}
	if p = came(0, 0); p.needsReach() {
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
