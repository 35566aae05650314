package membroker

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// log has the messages of a topic, by partition. Groups track what they have
// read.
type log struct {
	topic   string
	created int // how often, which is a part of its name
	records [][]record
	groups  map[string]*group
	turn    int // counts messages without an ordering key, which go to the partitions in turn
}

func newLog(topic string, partitions int) *log {
	return &log{topic: topic, created: 1, records: make([][]record, max(partitions, 1)), groups: make(map[string]*group)}
}

func (l *log) name() string { return fmt.Sprintf("%s#%d", l.topic, l.created) }

func (l *log) partition(i int) string { return fmt.Sprintf("%s/%d", l.topic, i) }

func (l *log) add(m *broker.Message, now time.Time) {
	i := l.choose(m.OrderingKey)
	r := record{message: m, stored: now, partition: i}
	l.records[i] = append(l.records[i], r)
	for _, g := range l.groups {
		g.shares[i].add(r)
	}
}

func (l *log) choose(orderingKey string) int {
	if orderingKey == "" {
		l.turn++
		return l.turn % len(l.records)
	}
	hash := fnv.New32a()
	hash.Write([]byte(orderingKey))
	return int(hash.Sum32() % uint32(len(l.records)))
}

func (l *log) recreate() {
	l.created++
	clear(l.records)
	for _, g := range l.groups {
		g.begin()
	}
}

// group is a group of sessions that share a log.
type group struct {
	log     *log
	members []*session // in the order in which they joined
	shares  []*share   // by partition
}

// share is a partition as a group reads it. One session at a time owns it.
type share struct {
	buffer *buffer
	all    []*item // all items of the partition, by offset
	owner  *session
}

func (l *log) group(name string) *group {
	g := l.groups[name]
	if g == nil {
		g = &group{log: l}
		g.begin()
		l.groups[name] = g
	}
	return g
}

// begin makes the group start at the first messages.
func (g *group) begin() {
	g.shares = nil
	for _, records := range g.log.records {
		sh := &share{buffer: inflight.NewBuffer[record](0)}
		for _, r := range records {
			sh.add(r)
		}
		g.shares = append(g.shares, sh)
	}
}

func (sh *share) add(r record) { sh.all = append(sh.all, sh.buffer.Add(sh.buffer.Next(), r)) }

// rewind makes the share continue at an offset, and releases its messages in
// flight.
func (sh *share) rewind(offset int64) { sh.buffer.Reset(offset, inflight.ErrLost, sh.all[offset:]...) }

func (g *group) join(s *session) {
	g.members = append(g.members, s)
	g.assign()
}

func (g *group) leave(s *session) {
	g.members = slices.DeleteFunc(g.members, func(m *session) bool { return m == s })
	g.assign()
}

// assign assigns the shares to the sessions. A share with a new owner continues
// at the offset of the group.
func (g *group) assign() {
	for i, sh := range g.shares {
		var owner *session
		if len(g.members) > 0 {
			owner = g.members[i%len(g.members)]
		}
		if owner != sh.owner {
			sh.rewind(sh.buffer.Settled()) // the offset of the group
			sh.owner = owner
		}
	}
}

func (g *group) buffers(s *session) (buffers []*buffer) {
	for _, sh := range g.shares {
		if sh.owner == s {
			buffers = append(buffers, sh.buffer)
		}
	}
	return buffers
}

func (g *group) all() (buffers []*buffer) {
	for _, sh := range g.shares {
		buffers = append(buffers, sh.buffer)
	}
	return buffers
}

func (g *group) locate(it *item) (*broker.Position, string) {
	at := &broker.Position{Log: g.log.name(), Partition: g.log.partition(it.Value.partition), Offset: it.Offset}
	return at, fmt.Sprintf("%s@%d", at.Partition, at.Offset)
}

func (g *group) reject(*broker.Message, string, time.Time) {}

func (g *group) keepsRejected() bool { return false }

func (g *group) session(s *session) broker.Session { return &reader{session: s, group: g} }

// logSource is a source of a log.
type logSource struct {
	source
	log *log
}

var _ broker.LogLagger = (*logSource)(nil)

// LagFrom counts the messages after positions.
func (src *logSource) LagFrom(ctx context.Context, at map[string]broker.Position) (lag broker.Lag, err error) {
	if src.err != nil {
		return lag, src.err
	}
	b := src.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return lag, errDown
	}
	keep := b.options.Retention
	for i, records := range src.log.records {
		next := 0
		if p, ok := at[src.log.partition(i)]; ok {
			if p.Log != src.log.name() {
				return broker.Lag{}, fmt.Errorf("%w: the log is now %q, and %q has other offsets", broker.ErrInvalid, src.log.name(), p.Log)
			}
			if p.Offset >= int64(len(records)) {
				return broker.Lag{}, fmt.Errorf("%w: the partition %q ends before offset %d", broker.ErrInvalid, p.Partition, p.Offset)
			}
			next = int(max(p.Offset, -1)) + 1
		}
		for _, r := range records[next:] {
			if age := time.Since(r.stored); keep <= 0 || age <= keep {
				lag.Messages++
				lag.Oldest = max(lag.Oldest, age)
			}
		}
	}
	return lag, ctx.Err()
}

// reader is a session of a log. It is a [broker.Seeker].
type reader struct {
	*session
	group *group
}

var _ broker.Seeker = (*reader)(nil)

// Seek continues after p and moves the offset of the group. It fails if the log
// was recreated, or if the session does not own the partition.
func (r *reader) Seek(ctx context.Context, p broker.Position) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.broker.mu.Lock()
	defer r.broker.mu.Unlock()
	log := r.group.log
	switch {
	case r.tracker.Err() != nil:
		return r.tracker.Err()
	case p.Log != log.name():
		return fmt.Errorf("%w: the log is now %q, and %q has other offsets", broker.ErrInvalid, log.name(), p.Log)
	}
	for i, sh := range r.group.shares {
		if log.partition(i) == p.Partition && sh.owner == r.session {
			sh.rewind(min(max(p.Offset, -1), sh.buffer.Next()-1) + 1)
			r.broker.mu.Broadcast()
			return nil
		}
	}
	return fmt.Errorf("membroker: this session does not own the partition %q: seek in the session that gets its messages", p.Partition)
}
