package group

import (
	"github.com/effectively-once/once/broker/internal/desk"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Taken is a record that the client was asked for.
type Taken struct {
	From   *Partition
	Record *kgo.Record
}

// Partition is what a member knows of a partition that it was given. All of it is guarded by the mutex of the desk.
type Partition struct {
	cluster.Place
	Log  string
	Lane *desk.Lane[Taken]

	leaving bool         // it is being taken away, and what is out may still be settled
	old     int64        // messages below it may have been handed out by somebody before; -1: not known yet
	noted   cluster.Mark // what the last commit that was confirmed says
}

func newPartition(at cluster.Place, log string) *Partition {
	p := &Partition{Place: at, Log: log, Lane: desk.NewLane[Taken](-1), old: -1}
	p.note(cluster.Mark{Log: log})
	return p
}

// mark is what a commit says now. One that is not the last reaches ahead, so that what comes next can be handed out
// without waiting for another, and never goes back: what is below the reach that is noted may be handed out meanwhile.
func (p *Partition) mark(ahead int64) cluster.Mark {
	settled := p.Lane.Settled()
	reach := max(settled, p.Lane.Handed(), p.old)
	if ahead > 0 {
		reach = max(reach, p.noted.Reach, p.Lane.Next()+ahead)
	}
	return cluster.Mark{Offset: settled, Reach: reach, Log: p.Log}
}

// note is that a commit was confirmed. Nothing is handed out beyond its reach.
func (p *Partition) note(m cluster.Mark) {
	p.noted = m
	p.Lane.Limit = m.Reach
}

// lacks reports whether a commit that reaches further is needed, for the next message or one behind it.
func (p *Partition) lacks() bool { return p.Lane.Fresh() > 0 && p.Lane.Next() > p.noted.Reach }

// Again reports whether a message may have been handed out before, to anyone.
func (p *Partition) Again(offset int64) bool { return offset < max(p.old, p.Lane.Handed()) }
