package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/effectively-once/once/broker/kafkabroker/internal/group"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxTracked bounds how many messages may follow one that is not settled, in all partitions.
const maxTracked = 100_000

// longestDelay is how long a returned message is kept at most: its partition is not committed meanwhile.
const longestDelay = time.Minute

// session is a member of the group. Receive polls the client in the caller's goroutine, and what it takes is noted
// in the partition before anything else happens to that: see hold and interrupt.
type session struct {
	options *Options
	member  *group.Member

	desk    *desk.Desk[group.Taken] // guards what follows
	holds   int                     // how many wait for nobody to poll
	polling chan struct{}           // closed when what the last poll took is noted; nil: there was none
}

type (
	lane = desk.Lane[group.Taken]
	item = desk.Item[group.Taken]
)

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
	_ broker.Seeker       = (*session)(nil)
)

// Open joins the group. It fails if a topic does not exist, or the cluster cannot be reached before ctx ends.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if s.group == "" || len(s.topics) == 0 {
		return nil, fmt.Errorf("%w: a session needs a group and a topic; these are %q and %q",
			broker.ErrInvalid, s.group, s.topics)
	}
	counter, err := desk.New[group.Taken](new(desk.Bell), window)
	if err != nil {
		return nil, err
	}
	m := group.New(ctx, counter)
	o := &session{options: s.options, member: m, desk: counter}
	m.Interrupt = o.interrupt
	if m.Client, err = s.options.client(m.Options(s.group)...); err == nil {
		m.Logs, err = cluster.Logs(ctx, m.Client, s.topics)
	}
	if err != nil {
		m.Abandon()
		return nil, err
	}
	go m.Commit(s.options.CommitEvery)
	m.Client.AddConsumeTopics(s.topics...) // only now: what is called back from here on needs the names of the logs
	return o, nil
}

func (s *session) LongestDelay() time.Duration { return longestDelay }

func (s *session) KeepsRejected() bool { return s.options.DeadLetter != "" }

func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return s.desk.Receive(ctx, limit, s)
}

// Lanes are those of the partitions that are not being taken away.
func (s *session) Lanes() []*lane { return s.member.Lanes() }

// Deliver says of a message below what was handed out that it comes again.
func (s *session) Deliver(_ *lane, it *item) broker.Delivery {
	p := it.Value.From
	again := p.Again(it.Offset)
	m := decode(it.Value.Record)
	if it.Attempt > 1 || !again { // else others may have had it, and nobody knows how often
		m.Attempt = it.Attempt
	}
	return broker.Delivery{
		Message:     m,
		Redelivered: again,
		Position:    &broker.Position{Log: p.Log, Partition: p.String(), Offset: it.Offset},
		Origin:      fmt.Sprintf("%s@%d", p, it.Offset),
	}
}

// Await asks the client for records, as many as there is room for, and notes what it took.
func (s *session) Await(ctx context.Context) {
	s.desk.Lock()
	room := s.room()
	if room <= 0 {
		s.desk.Unlock()
		<-ctx.Done()
		return
	}
	noted := make(chan struct{})
	defer close(noted)
	s.polling = noted
	s.desk.Unlock()

	fetches := s.member.Client.PollRecords(ctx, room)

	s.desk.Lock()
	defer s.desk.Unlock()
	for _, fetch := range fetches {
		for _, topic := range fetch.Topics {
			for _, part := range topic.Partitions {
				s.note(ctx, topic.Topic, topic.TopicID, part)
			}
		}
	}
}

// room is how many records may be asked for. The mutex is held.
func (s *session) room() int {
	lanes, tracked, held := s.Lanes(), 0, 0
	for _, l := range lanes {
		tracked += l.Tracked()
		held += l.Held()
	}
	if s.holds > 0 || tracked >= maxTracked || held >= s.options.LargestHeld {
		return 0
	}
	return s.desk.Room(lanes...)
}

// note puts records into the lane of their partition. The mutex is held.
func (s *session) note(ctx context.Context, topic string, id [16]byte, part kgo.FetchPartition) {
	at := cluster.Place{Topic: topic, Number: part.Partition}
	if part.Err != nil {
		if ctx.Err() == nil || !errors.Is(part.Err, ctx.Err()) {
			s.desk.Fail(explainFetch(at, part.Err))
		}
		return
	}
	p := s.member.Partition(at)
	if len(part.Records) == 0 || p == nil {
		return // whoever has the partition next reads them again
	}
	if log := cluster.LogName(topic, id); id != [16]byte{} && log != p.Log {
		s.desk.Fail(fmt.Errorf("kafkabroker: topic %s was made anew: open another session", topic))
		return
	}
	if err := s.member.Add(p, part); err != nil {
		s.desk.Fail(err)
	}
}

func explainFetch(at cluster.Place, err error) error {
	var session *kgo.ErrGroupSession
	switch {
	case errors.As(err, &session):
		return fmt.Errorf("%w: %w", group.ErrLost, err)
	case errors.Is(err, kerr.OffsetOutOfRange):
		return fmt.Errorf("kafkabroker: the group comes to an offset that %s does not have: if the retention has passed it "+
			"by, messages are lost; set the group's offset to what is left, for example to the earliest: %w", at, err)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafkabroker: topic %s was deleted, or made anew: open another session: %w", at.Topic, err)
	}
	return fmt.Errorf("kafkabroker: reading %s: open another session: %w", at, err)
}

// interrupt ends a poll that is under way, which loses nothing, and returns when what it took is noted. Nothing that a
// later poll takes is older than this call.
func (s *session) interrupt() {
	s.desk.Lock()
	s.desk.Ring()
	noted := s.polling
	s.desk.Unlock()
	if noted != nil {
		<-noted
	}
}

func (s *session) Close(ctx context.Context) error {
	s.desk.Lock()
	again := s.desk.Close()
	s.desk.Unlock()
	if again {
		return nil
	}
	return s.member.Leave(ctx)
}
