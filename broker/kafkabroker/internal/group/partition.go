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
}

// Partition is a partition that the member was assigned. The mutex of the
// tracker guards it.
type Partition struct {
	cluster.TopicPartition
	Log    string
	Buffer *inflight.Buffer[Fetched]

	revoking bool         // it is being revoked; deliveries in flight may still be settled
	old      int64        // messages below it may have been delivered before; -1: not known yet
	noted    cluster.Mark // the last confirmed commit
}

func newPartition(at cluster.TopicPartition, log string) *Partition {
	p := &Partition{TopicPartition: at, Log: log, Buffer: inflight.NewBuffer[Fetched](-1), old: -1}
	p.note(cluster.Mark{Log: log})
	return p
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
	return cluster.Mark{Offset: settled, Reach: reach, Log: p.Log}
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
