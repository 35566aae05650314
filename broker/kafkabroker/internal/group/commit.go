package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Add puts records into the lane of their partition. The error says that they cannot be what comes next. The mutex is
// held.
func (g *Member) Add(p *Partition, fetched kgo.FetchPartition) error {
	if p.old < 0 {
		p.old = max(fetched.HighWatermark, p.Lane.Next())
	}
	for _, r := range fetched.Records {
		if r.Offset < p.Lane.Next() {
			return fmt.Errorf("kafkabroker: %s@%d came again, before offset %d: the log was cut: open another session",
				p, r.Offset, p.Lane.Next())
		}
		p.Lane.Add(r.Offset, Taken{p, r})
	}
	if p.lacks() {
		select {
		case g.urgent <- struct{}{}:
		default:
		}
	}
	return nil
}

// Commit commits what is settled, now and then, until the member leaves.
func (g *Member) Commit(every time.Duration) {
	defer close(g.finished)
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-g.urgent:
		case <-tick.C:
		}
		if err := g.commit(g.ctx, g.all(), int64(max(100, 10*g.desk.Window()))); err != nil {
			g.commitFailed(err)
		}
	}
}

// commitFailed leaves it to the next commit to try again, unless that is in vain.
func (g *Member) commitFailed(err error) {
	var code *kerr.Error
	passing := !errors.As(err, &code) || code.Retriable || errors.Is(err, kerr.RebalanceInProgress) ||
		errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.UnknownMemberID)
	if passing {
		return // the client tells of a lost membership by itself, and joins a new generation
	}
	g.desk.Lock()
	defer g.desk.Unlock()
	g.desk.Fail(fmt.Errorf("kafkabroker: the group's offsets cannot be committed: %w", err))
}

// commit says how far partitions are settled, and notes it when it was confirmed. What it says is read only after all
// earlier commits have ended: a commit that is overtaken would move the group back, or a partition that others have.
// The last commit of a partition, with nothing ahead, is for those that are not ours any more.
func (g *Member) commit(ctx context.Context, ps []*Partition, ahead int64) error {
	select {
	case g.committing <- struct{}{}:
		defer func() { <-g.committing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	marks := g.marks(ps, ahead)
	if len(marks) == 0 {
		return nil
	}
	said := make(map[cluster.Place]cluster.Mark, len(marks))
	for p, m := range marks {
		said[p.Place] = m
	}
	if err := cluster.Commit(ctx, g.Client, said); err != nil {
		return err
	}
	g.confirm(marks)
	return nil
}

// marks are what there is to say of partitions that is new.
func (g *Member) marks(ps []*Partition, ahead int64) map[*Partition]cluster.Mark {
	g.desk.Lock()
	defer g.desk.Unlock()
	marks := make(map[*Partition]cluster.Mark)
	for _, p := range ps {
		m := p.mark(ahead)
		switch {
		case g.lost, p.old < 0: // what others have handed out is not known yet, so it cannot be said
		case ahead == 0 && m != p.noted,
			g.Has(p) && !g.desk.Closed() && (m.Offset != p.noted.Offset || p.lacks()):
			marks[p] = m
		}
	}
	return marks
}

func (g *Member) confirm(marks map[*Partition]cluster.Mark) {
	g.desk.Lock()
	defer g.desk.Unlock()
	for p, m := range marks {
		p.note(m)
	}
	g.desk.Ring()
}

// Leave commits what is settled, and ends the membership and the client. The desk is closed by then.
func (g *Member) Leave(ctx context.Context) error {
	defer g.Client.Close() // which is quick once its context has ended
	defer func() { <-g.finished }()
	defer g.end()
	err := g.commit(ctx, g.all(), 0)
	if err != nil {
		err = fmt.Errorf("kafkabroker: the last commit, so messages that were settled may come again: %w", err)
	}
	return errors.Join(err, g.sayGoodBye(ctx))
}

// sayGoodBye spares the group to wait for the session to time out.
func (g *Member) sayGoodBye(ctx context.Context) error {
	err := g.Client.LeaveGroupContext(ctx)
	if err == nil || errors.Is(err, kerr.UnknownMemberID) {
		return nil
	}
	return fmt.Errorf("kafkabroker: leaving the group, which has to miss this member first: %w", err)
}

// Abandon ends a member that Commit was not called for.
func (g *Member) Abandon() {
	g.end()
	if g.Client != nil {
		g.Client.Close()
	}
}
