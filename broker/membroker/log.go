package membroker

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

// log is the messages of a topic, by partition. They stay; what a group has read is the group's affair.
type log struct {
	topic   string
	made    int // how often: part of its name
	records [][]record
	groups  map[string]*group
	turn    int // of the partition that takes the next message without an ordering key
}

func newLog(topic string, partitions int) *log {
	return &log{topic: topic, made: 1, records: make([][]record, max(partitions, 1)), groups: make(map[string]*group)}
}

func (l *log) name() string { return fmt.Sprintf("%s#%d", l.topic, l.made) }

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
	l.made++
	clear(l.records)
	for _, g := range l.groups {
		g.begin()
	}
}

// group is readers that share a log.
type group struct {
	log     *log
	members []*session // in the order in which they came
	shares  []*share   // by partition
}

// share is the part of a group's reading that one session at a time has for itself.
type share struct {
	lane  *lane
	all   []*item // of the partition, by offset
	owner *session
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

// begin has read nothing.
func (g *group) begin() {
	g.shares = nil
	for _, records := range g.log.records {
		sh := &share{lane: desk.NewLane[record](0)}
		for _, r := range records {
			sh.add(r)
		}
		g.shares = append(g.shares, sh)
	}
}

func (sh *share) add(r record) { sh.all = append(sh.all, sh.lane.Add(sh.lane.Next(), r)) }

// rewind lets the share go on at an offset, with whatever was settled behind it. What is out is not any more.
func (sh *share) rewind(offset int64) { sh.lane.Rewind(offset, desk.ErrGone, sh.all[offset:]...) }

func (g *group) join(s *session) {
	g.members = append(g.members, s)
	g.deal()
}

func (g *group) leave(s *session) {
	g.members = slices.DeleteFunc(g.members, func(m *session) bool { return m == s })
	g.deal()
}

// deal gives each share an owner. One that changes hands goes on where the group has committed.
func (g *group) deal() {
	for i, sh := range g.shares {
		var owner *session
		if len(g.members) > 0 {
			owner = g.members[i%len(g.members)]
		}
		if owner != sh.owner {
			sh.rewind(sh.lane.Settled()) // all that a group keeps of a partition
			sh.owner = owner
		}
	}
}

func (g *group) lanes(s *session) (lanes []*lane) {
	for _, sh := range g.shares {
		if sh.owner == s {
			lanes = append(lanes, sh.lane)
		}
	}
	return lanes
}

func (g *group) all() (lanes []*lane) {
	for _, sh := range g.shares {
		lanes = append(lanes, sh.lane)
	}
	return lanes
}

func (g *group) locate(it *item) (*broker.Position, string) {
	at := &broker.Position{Log: g.log.name(), Partition: g.log.partition(it.Value.partition), Offset: it.Offset}
	return at, fmt.Sprintf("%s@%d", at.Partition, at.Offset)
}

func (g *group) reject(*broker.Message, string, time.Time) {}

func (g *group) keepsRejected() bool { return false }

func (g *group) session(s *session) broker.Session { return &reader{session: s, group: g} }

// reader is the session of a log, which can seek.
type reader struct {
	*session
	group *group
}

var _ broker.Seeker = (*reader)(nil)

// Seek goes on behind p, and lets the group keep that. It is an error unless p names the log as it is now, and a
// partition that the session has.
func (r *reader) Seek(ctx context.Context, p broker.Position) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.broker.mu.Lock()
	defer r.broker.mu.Unlock()
	log := r.group.log
	switch {
	case r.desk.Ended() != nil:
		return r.desk.Ended()
	case p.Log != log.name():
		return fmt.Errorf("%w: the log is %q now, and not %q: its offsets are others", broker.ErrInvalid, log.name(), p.Log)
	}
	for i, sh := range r.group.shares {
		if log.partition(i) == p.Partition && sh.owner == r.session {
			sh.rewind(min(max(p.Offset, -1), sh.lane.Next()-1) + 1)
			r.broker.mu.Ring()
			return nil
		}
	}
	return fmt.Errorf("membroker: this session does not have the partition %q: seek where its messages come", p.Partition)
}
