// Package group is the membership in a consumer group: which partitions the member was given, how far they are settled,
// and what the group keeps of that.
package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once/broker/internal/desk"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	// ErrLost is why a session ends that the group has gone on without.
	ErrLost = errors.New("kafkabroker: the membership of the group was lost: open another session")

	// ErrMoved is for what is settled too late.
	ErrMoved = errors.New("kafkabroker: its partition was taken away, so it comes again elsewhere")
)

// Member is one of a group, with a client of its own.
type Member struct {
	Client    *kgo.Client
	Logs      map[string]string // the topics, and what their logs are called
	Interrupt func()            // ends a poll that is under way, and returns when what it took is added

	ctx        context.Context // that of the client and of everything in the background
	end        context.CancelFunc
	committing chan struct{} // has one element while a commit is on its way
	urgent     chan struct{} // there is something to commit now
	finished   chan struct{} // Commit has ended

	desk       *desk.Desk[Taken] // guards what follows
	lost       bool              // the membership was lost, and the client will say why
	assigned   bool              // the group has answered at least once
	partitions map[cluster.Place]*Partition
}

// New returns a member that has no client yet.
func New(ctx context.Context, d *desk.Desk[Taken]) *Member {
	g := &Member{desk: d, partitions: make(map[cluster.Place]*Partition)}
	g.committing, g.urgent, g.finished = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	g.ctx, g.end = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Options are what makes a client the member's.
func (g *Member) Options(group string) []kgo.Opt {
	return []kgo.Opt{
		kgo.WithContext(g.ctx),
		kgo.ConsumerGroup(group),
		kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NoResetOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.OnPartitionsAssigned(g.onAssigned),
		kgo.OnOffsetsFetched(g.onFetched),
		kgo.AdjustFetchOffsetsFn(g.adjust),
		kgo.OnPartitionsRevoked(g.onRevoked),
		kgo.OnPartitionsLost(g.onLost),
	}
}

func (g *Member) onAssigned(_ context.Context, _ *kgo.Client, given map[string][]int32) {
	g.desk.Lock()
	defer g.desk.Unlock()
	g.assigned = true
	if g.lost {
		g.desk.Fail(ErrLost)
	}
	for at := range cluster.Places(given) {
		g.drop(g.partitions[at])
		g.partitions[at] = newPartition(at, g.Logs[at.Topic])
	}
	g.desk.Ring()
}

// onFetched learns from the last commits where to begin, and how far others have come.
func (g *Member) onFetched(ctx context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	fresh := g.begin(resp)
	starts, err := cluster.Oldest(ctx, g.Client, fresh...)
	if err != nil || len(starts) < len(fresh) {
		return cmp.Or(err, errors.New("kafkabroker: the cluster did not tell where a partition begins"))
	}
	g.desk.Lock()
	defer g.desk.Unlock()
	for at, start := range starts {
		if p := g.partitions[at]; p != nil {
			p.Lane.Rewind(start, nil)
		}
	}
	return nil
}

// begin returns the partitions that the group has no offset of. That of another log of the same name says nothing of
// this one, which is read from its beginning.
func (g *Member) begin(resp *kmsg.OffsetFetchResponse) (fresh []cluster.Place) {
	g.desk.Lock()
	defer g.desk.Unlock()
	for at, m := range cluster.Fetched(resp) {
		p := g.partitions[at]
		switch {
		case p == nil:
		case m.Offset < 0, m.Log != "" && m.Log != p.Log:
			fresh = append(fresh, at)
		default:
			p.Lane.Rewind(m.Offset, nil)
			if m.Log != "" {
				p.old = max(m.Reach, m.Offset)
				p.note(m)
			}
		}
	}
	return fresh
}

// offsets are by topic and partition.
type offsets = map[string]map[int32]kgo.Offset

// adjust tells the client exactly where to begin.
func (g *Member) adjust(_ context.Context, offsets offsets) (offsets, error) {
	g.desk.Lock()
	defer g.desk.Unlock()
	for topic, numbers := range offsets {
		for number := range numbers {
			if p := g.partitions[cluster.Place{Topic: topic, Number: number}]; p != nil && p.Lane.Next() >= 0 {
				numbers[number] = kgo.NewOffset().At(p.Lane.Next())
			}
		}
	}
	return offsets, nil
}

// onRevoked lets go of partitions, once what is out of them is settled. It is called for none of them at the end of
// each rebalance, and when the session leaves the group, after its last commit.
func (g *Member) onRevoked(ctx context.Context, _ *kgo.Client, taken map[string][]int32) {
	if len(taken) == 0 {
		return
	}
	g.Interrupt()
	patience := time.Minute
	if timeout, ok := g.Client.OptValue(kgo.RebalanceTimeout).(time.Duration); ok {
		patience = timeout
	}
	ps := g.letGo(taken)
	g.settled(ctx, ps, patience/2)
	g.forget(ps)
	ctx, cancel := context.WithTimeout(ctx, patience/4)
	defer cancel()
	_ = g.commit(ctx, ps, 0) // if it fails, what was settled comes again, elsewhere
}

// letGo hands out nothing more of partitions that are taken away.
func (g *Member) letGo(taken map[string][]int32) (ps []*Partition) {
	g.desk.Lock()
	defer g.desk.Unlock()
	for at := range cluster.Places(taken) {
		if p := g.partitions[at]; p != nil && !g.desk.Closed() {
			p.leaving = true
			ps = append(ps, p)
		}
	}
	return ps
}

// settled waits until nothing of the partitions is out, or patience ends.
func (g *Member) settled(ctx context.Context, ps []*Partition, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = g.desk.Until(ctx, func() bool {
		out := 0
		for _, p := range ps {
			out += p.Lane.Out()
		}
		return out == 0 || g.desk.Closed()
	})
}

// forget ends the use of partitions: what is settled from now on is an error.
func (g *Member) forget(ps []*Partition) {
	g.desk.Lock()
	defer g.desk.Unlock()
	for _, p := range ps {
		if g.Has(p) {
			g.drop(p)
			delete(g.partitions, p.Place)
		}
	}
	g.desk.Ring()
}

// onLost is called when the group goes on without this member: nothing can be committed any more.
func (g *Member) onLost(context.Context, *kgo.Client, map[string][]int32) {
	g.desk.Lock()
	g.lost = true
	g.desk.Unlock()
	g.forget(g.all())
}

// Partition is one of the member's, or nil. The mutex is held.
func (g *Member) Partition(at cluster.Place) *Partition { return g.partitions[at] }

// Lanes are those of the partitions that are not being taken away.
func (g *Member) Lanes() (lanes []*desk.Lane[Taken]) {
	for _, p := range g.partitions {
		if !p.leaving {
			lanes = append(lanes, p.Lane)
		}
	}
	return lanes
}

// Own waits until the group has said who has a partition.
func (g *Member) Own(ctx context.Context, at cluster.Place) (p *Partition, err error) {
	late := g.desk.Until(ctx, func() bool {
		p, err = g.partitions[at], g.desk.Ended()
		return err != nil || p != nil || g.assigned
	})
	switch {
	case err != nil:
		return nil, err
	case late != nil:
		return nil, late
	case p == nil:
		return nil, fmt.Errorf("kafkabroker: %s is not with this session: seek when messages of it come", at)
	}
	return p, nil
}

// Has reports whether a partition is still the member's. The mutex is held.
func (g *Member) Has(p *Partition) bool { return g.partitions[p.Place] == p }

// drop forgets what came from a partition, unless that is nil. The mutex is held.
func (g *Member) drop(p *Partition) {
	if p != nil {
		p.Lane.Rewind(p.Lane.Settled(), ErrMoved)
	}
}

// all are the member's partitions.
func (g *Member) all() []*Partition {
	g.desk.Lock()
	defer g.desk.Unlock()
	return slices.Collect(maps.Values(g.partitions))
}
