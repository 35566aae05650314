package group

import (
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Fetched is a record in a buffer.
type Fetched struct {
	From   *Partition
	Record *kgo.Record
	Gap    int64 // number of offsets before it without a message
}

// Partition is a partition that the member was assigned. The mutex of the
// tracker guards it.
type Partition struct {
	cluster.TopicPartition
	Log    string
	Buffer *inflight.Buffer[Fetched]

	gap      int64        // number of offsets before the buffer's Next without a message
	revoking bool         // it is being revoked; deliveries in flight may still be settled
	old      int64        // messages below it may have been delivered before; -1: not known yet
	noted    cluster.Mark // the last confirmed commit
}

func newPartition(at cluster.TopicPartition, log string) *Partition {
	p := &Partition{TopicPartition: at, Log: log, Buffer: inflight.NewBuffer[Fetched](-1), old: -1}
	p.note(cluster.Mark{Log: log})
	return p
}

// Start makes the partition continue at an offset, with a known gap without
// messages before it. Settling what was in flight returns the error released. The
// mutex is held.
func (p *Partition) Start(at, gap int64, released error) {
	p.Buffer.Reset(at, released)
	p.gap = gap
}

// add adds a record, which may be a control record.
func (p *Partition) add(r *kgo.Record) {
	p.gap += r.Offset - p.Buffer.Next()
	if r.Attrs.IsControl() {
		p.gap++
		p.Buffer.Skip(r.Offset)
		return
	}
	p.Buffer.Add(r.Offset, Fetched{From: p, Record: r, Gap: p.gap})
	p.gap = 0
}

// settledGap returns how many offsets before the first unsettled one have no
// message.
func (p *Partition) settledGap() int64 {
	for it := range p.Buffer.Items() {
		return it.Value.Gap
	}
	return p.gap
}

// IsEmpty reports whether there are known to be no messages from one offset to
// another, which does not belong to them. The mutex is held.
func (p *Partition) IsEmpty(from, to int64) bool {
	for it := range p.Buffer.Items() {
		if it.Offset-it.Value.Gap <= from && to <= it.Offset {
			return true
		}
	}
	return p.Buffer.Next()-p.gap <= from && to <= p.Buffer.Next()
}

// mark returns what to commit now. Its reach is ahead of the messages, so that
// the next ones can be delivered without waiting for another commit. It never
// decreases, because messages below the noted reach may be delivered meanwhile.
// With ahead 0 it is the mark of the last commit, and reaches no further than
// what was delivered.
func (p *Partition) mark(ahead int64) cluster.Mark {
	settled := p.Buffer.Settled()
	reach := max(settled, p.Buffer.Delivered(), p.old)
	if ahead > 0 {
		reach = max(reach, p.noted.Reach, p.Buffer.Next()+ahead)
	}
	return cluster.Mark{Offset: settled, Reach: reach, Gap: p.settledGap(), Log: p.Log}
}

// note records a confirmed commit. Messages beyond its reach are not delivered.
func (p *Partition) note(m cluster.Mark) {
	p.noted = m
	p.Buffer.Limit = m.Reach
}

// needsReach reports whether messages wait for a commit that reaches further.
func (p *Partition) needsReach() bool {
	return p.Buffer.Unread() > 0 && p.Buffer.Next() > p.noted.Reach
}

// Again reports whether a message may have been delivered before, by any session.
func (p *Partition) Again(offset int64) bool { return offset < max(p.old, p.Buffer.Delivered()) }
