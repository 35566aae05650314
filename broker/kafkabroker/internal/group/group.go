// Package group implements the membership in a consumer group: the assigned
// partitions, how far they are settled, and the commits.
package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	// ErrLost is the error of a session whose membership the group has ended.
	ErrLost = errors.New("kafkabroker: the membership of the group was lost: open another session")

	// ErrMoved is returned for a delivery whose partition was revoked.
	ErrMoved = fmt.Errorf("kafkabroker: the partition was revoked, and the message comes again elsewhere: %w", broker.ErrSettled)
)

// Member is a member of a group, with its own client.
type Member struct {
	Client    *kgo.Client
	Logs      map[string]string // names of logs, by topic
	Interrupt func()            // ends a poll in progress, and returns when its records are added

	ctx        context.Context // of the client and of background goroutines
	end        context.CancelFunc
	committing chan struct{} // has one element while a commit is in progress
	urgent     chan struct{} // has an element if a commit is needed now
	finished   chan struct{} // Commit has ended

	tracker    *inflight.Tracker[Fetched] // guards the fields below
	lost       bool                       // the membership was lost, and the client is about to report why
	assigned   bool                       // the group has assigned partitions at least once
	partitions map[cluster.TopicPartition]*Partition
}

// New returns a member without a client.
func New(ctx context.Context, d *inflight.Tracker[Fetched]) *Member {
	g := &Member{tracker: d, partitions: make(map[cluster.TopicPartition]*Partition)}
	g.committing, g.urgent, g.finished = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	g.ctx, g.end = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Options returns the options of the member's client.
func (g *Member) Options(group string) []kgo.Opt {
	return []kgo.Opt{
		kgo.WithContext(g.ctx),
		kgo.ConsumerGroup(group),
		kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NoResetOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepControlRecords(), // what was read past them is settled
		kgo.OnPartitionsAssigned(g.onAssigned),
		kgo.OnOffsetsFetched(g.onFetched),
		kgo.AdjustFetchOffsetsFn(g.adjust),
		kgo.OnPartitionsRevoked(g.onRevoked),
		kgo.OnPartitionsLost(g.onLost),
	}
}

func (g *Member) onAssigned(_ context.Context, _ *kgo.Client, given map[string][]int32) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	g.assigned = true
	if g.lost {
		g.tracker.Fail(ErrLost)
	}
	for at := range cluster.TopicPartitions(given) {
		g.drop(g.partitions[at])
		g.partitions[at] = newPartition(at, g.Logs[at.Topic])
	}
	g.tracker.Broadcast()
}

// onFetched takes from the last commits where to start, and what was delivered
// before.
func (g *Member) onFetched(ctx context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	fresh := g.begin(resp)
	starts, err := cluster.Oldest(ctx, g.Client, fresh...)
	if err != nil || len(starts) < len(fresh) {
		return cmp.Or(err, errors.New("kafkabroker: the cluster did not return the start of a partition"))
	}
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for at, start := range starts {
		if p := g.partitions[at]; p != nil {
			p.Start(start, 0, nil)
		}
	}
	return nil
}

// begin sets where partitions start, and returns those without a committed
// offset. An offset in an earlier log of the same name does not count.
func (g *Member) begin(resp *kmsg.OffsetFetchResponse) (fresh []cluster.TopicPartition) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for at, m := range cluster.Fetched(resp) {
		p := g.partitions[at]
		switch {
		case p == nil:
		case m.Offset < 0, m.Log != "" && m.Log != p.Log:
			fresh = append(fresh, at)
		default:
			p.Start(m.Offset, m.Gap, nil)
			if m.Log != "" {
				p.old = max(m.Reach, m.Offset)
				p.note(m)
			}
		}
	}
	return fresh
}

// offsets are offsets by topic and partition.
type offsets = map[string]map[int32]kgo.Offset

// adjust tells the client where to start.
func (g *Member) adjust(_ context.Context, offsets offsets) (offsets, error) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for topic, numbers := range offsets {
		for number := range numbers {
			if p := g.partitions[cluster.TopicPartition{Topic: topic, Number: number}]; p != nil && p.Buffer.Next() >= 0 {
				numbers[number] = kgo.NewOffset().At(p.Buffer.Next())
			}
		}
	}
	return offsets, nil
}

// onRevoked waits until the deliveries in flight of the revoked partitions are
// settled, and commits. It is also called without partitions at the end of each
// rebalance, and when the session leaves the group after its last commit.
func (g *Member) onRevoked(ctx context.Context, _ *kgo.Client, revoked map[string][]int32) {
	if len(revoked) == 0 {
		return
	}
	g.Interrupt()
	timeout := time.Minute
	if configured, ok := g.Client.OptValue(kgo.RebalanceTimeout).(time.Duration); ok {
		timeout = configured
	}
	ps := g.startRevoking(revoked)
	g.awaitSettled(ctx, ps, timeout/2)
	g.forget(ps)
	ctx, cancel := context.WithTimeout(ctx, timeout/4)
	defer cancel()
	_ = g.commit(ctx, ps, 0) // if it fails, settled messages are delivered again elsewhere
}

// startRevoking ends the delivery from revoked partitions.
func (g *Member) startRevoking(revoked map[string][]int32) (ps []*Partition) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for at := range cluster.TopicPartitions(revoked) {
		if p := g.partitions[at]; p != nil && !g.tracker.Closed() {
			p.revoking = true
			ps = append(ps, p)
		}
	}
	return ps
}

// awaitSettled waits until nothing of the partitions is in flight, or until the
// timeout.
func (g *Member) awaitSettled(ctx context.Context, ps []*Partition, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_ = g.tracker.WaitUntil(ctx, func() bool {
		inFlight := 0
		for _, p := range ps {
			inFlight += p.Buffer.InFlight()
		}
		return inFlight == 0 || g.tracker.Closed()
	})
}

// forget removes partitions. Settling their deliveries returns an error from now
// on.
func (g *Member) forget(ps []*Partition) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for _, p := range ps {
		if g.Has(p) {
			g.drop(p)
			delete(g.partitions, p.TopicPartition)
		}
	}
	g.tracker.Broadcast()
}

// onLost is called when the group has removed this member. It cannot commit any
// more.
func (g *Member) onLost(context.Context, *kgo.Client, map[string][]int32) {
	g.tracker.Lock()
	g.lost = true
	g.tracker.Unlock()
	g.forget(g.all())
}

// Partition returns an assigned partition, or nil. The mutex is held.
func (g *Member) Partition(at cluster.TopicPartition) *Partition { return g.partitions[at] }

// Buffers returns the buffers of the partitions that are not being revoked. The
// mutex is held.
func (g *Member) Buffers() (buffers []*inflight.Buffer[Fetched]) {
	for _, p := range g.partitions {
		if !p.revoking {
			buffers = append(buffers, p.Buffer)
		}
	}
	return buffers
}

// Own returns an assigned partition. It waits until the group has assigned
// partitions.
func (g *Member) Own(ctx context.Context, at cluster.TopicPartition) (p *Partition, err error) {
	late := g.tracker.WaitUntil(ctx, func() bool {
		p, err = g.partitions[at], g.tracker.Err()
		return err != nil || p != nil || g.assigned
	})
	switch {
	case err != nil:
		return nil, err
	case late != nil:
		return nil, late
	case p == nil:
		return nil, fmt.Errorf("kafkabroker: %s is not assigned to this session: seek when its messages come", at)
	}
	return p, nil
}

// Has reports whether a partition is still assigned. The mutex is held.
func (g *Member) Has(p *Partition) bool { return g.partitions[p.TopicPartition] == p }

// drop releases the messages of a partition, which may be nil. The mutex is held.
func (g *Member) drop(p *Partition) {
	if p != nil {
		p.Start(p.Buffer.Settled(), p.settledGap(), ErrMoved)
	}
}

// all returns the assigned partitions.
func (g *Member) all() []*Partition {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	return slices.Collect(maps.Values(g.partitions))
}

// Add adds records to the buffer of their partition. It fails if they are not the
// next ones. The mutex is held.
func (g *Member) Add(p *Partition, fetched kgo.FetchPartition) error {
	if p.old < 0 {
		p.old = max(fetched.HighWatermark, p.Buffer.Next())
	}
	for _, r := range fetched.Records {
		if r.Offset < p.Buffer.Next() {
			return fmt.Errorf("kafkabroker: %s@%d came again, before offset %d: the log was truncated: open another session",
				p, r.Offset, p.Buffer.Next())
		}
		p.add(r)
	}
	if p.needsReach() {
		select {
		case g.urgent <- struct{}{}:
		default:
		}
	}
	return nil
}

// Commit commits at intervals, and when needed, until the member leaves.
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
		if err := g.commit(g.ctx, g.all(), int64(max(100, 10*g.tracker.Window()))); err != nil {
			g.commitFailed(err)
		}
	}
}

// commitFailed fails the session unless a later commit may succeed.
func (g *Member) commitFailed(err error) {
	var code *kerr.Error
	temporary := !errors.As(err, &code) || code.Retriable || errors.Is(err, kerr.RebalanceInProgress) ||
		errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.UnknownMemberID)
	if temporary {
		return // the client reports a lost membership itself, and joins a new generation
	}
	g.tracker.Lock()
	defer g.tracker.Unlock()
	g.tracker.Fail(fmt.Errorf("kafkabroker: the group's offsets cannot be committed: %w", err))
}

// commit commits how far partitions are settled, and notes the confirmed marks.
// It reads the marks after all earlier commits have ended, because an overtaken
// commit would move the group back, or a partition that another member owns. The
// last commit of a partition, with ahead 0, may come after it was removed.
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
	said := make(map[cluster.TopicPartition]cluster.Mark, len(marks))
	for p, m := range marks {
		said[p.TopicPartition] = m
	}
	if err := cluster.Commit(ctx, g.Client, said); err != nil {
		return err
	}
	g.confirm(marks)
	return nil
}

// marks returns the marks of partitions that differ from the noted ones.
func (g *Member) marks(ps []*Partition, ahead int64) map[*Partition]cluster.Mark {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	marks := make(map[*Partition]cluster.Mark)
	for _, p := range ps {
		m := p.mark(ahead)
		switch {
		case g.lost, p.old < 0: // what was delivered before is not known yet, so no reach can be committed
		case ahead == 0 && m != p.noted,
			g.Has(p) && !g.tracker.Closed() && (m.Offset != p.noted.Offset || p.needsReach()):
			marks[p] = m
		}
	}
	return marks
}

// confirm notes marks that were committed.
func (g *Member) confirm(marks map[*Partition]cluster.Mark) {
	g.tracker.Lock()
	defer g.tracker.Unlock()
	for p, m := range marks {
		p.note(m)
	}
	g.tracker.Broadcast()
}

// Leave commits and ends the membership and the client. The tracker is closed
// before.
func (g *Member) Leave(ctx context.Context) error {
	defer g.Client.Close() // fast once its context has ended
	defer func() { <-g.finished }()
	defer g.end()
	err := g.commit(ctx, g.all(), 0)
	if err != nil {
		err = fmt.Errorf("kafkabroker: the last commit failed, so settled messages may come again: %w", err)
	}
	return errors.Join(err, g.leaveGroup(ctx))
}

// leaveGroup lets the group reassign the partitions without waiting for the
// session timeout.
func (g *Member) leaveGroup(ctx context.Context) error {
	err := g.Client.LeaveGroupContext(ctx)
	if err == nil || errors.Is(err, kerr.UnknownMemberID) {
		return nil
	}
	return fmt.Errorf("kafkabroker: leaving the group, which will wait for the session timeout: %w", err)
}

// Abandon ends a member whose Commit was never called.
func (g *Member) Abandon() {
	g.end()
	if g.Client != nil {
		g.Client.Close()
	}
}
