package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/broker/kafkabroker/internal/cluster"
	"github.com/effectively-once/once/broker/kafkabroker/internal/group"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxTracked is how many messages may follow an unsettled one, in all
// partitions.
const maxTracked = 100_000

// longestDelay limits how long a returned message is kept, because it holds back
// the commit of its partition.
const longestDelay = time.Minute

// session is a member of the group. Receive polls the client in the goroutine of
// its caller. The records of a poll are added to their partitions before the
// partitions are changed otherwise: see hold and interrupt.
type session struct {
	options *Options
	member  *group.Member

	tracker *inflight.Tracker[group.Fetched] // guards the fields below
	holds   int                              // number of callers that keep Receive from polling
	polling chan struct{}                    // closed when the records of the last poll are added; nil: there was none
}

type (
	buffer = inflight.Buffer[group.Fetched]
	item   = inflight.Item[group.Fetched]
)

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
	_ broker.Seeker       = (*session)(nil)
)

// Open joins the group. It fails if a topic does not exist, or if the cluster
// cannot be reached before ctx ends.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if s.group == "" || len(s.topics) == 0 {
		return nil, fmt.Errorf("%w: a session needs a group and a topic; these are %q and %q",
			broker.ErrInvalid, s.group, s.topics)
	}
	tracker, err := inflight.NewTracker[group.Fetched](new(inflight.Cond), window)
	if err != nil {
		return nil, err
	}
	m := group.New(ctx, tracker)
	o := &session{options: s.options, member: m, tracker: tracker}
	m.Interrupt = o.interrupt
	if m.Client, err = s.options.client(m.Options(s.group)...); err == nil {
		m.Logs, err = cluster.Logs(ctx, m.Client, s.topics)
	}
	if err != nil {
		m.Abandon()
		return nil, err
	}
	go m.Commit(s.options.CommitEvery)
	m.Client.AddConsumeTopics(s.topics...) // last, because the callbacks need the names of the logs
	return o, nil
}

func (s *session) LongestDelay() time.Duration { return longestDelay }

func (s *session) KeepsRejected() bool { return s.options.DeadLetter != "" }

func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return s.tracker.Receive(ctx, limit, s)
}

// Buffers returns the buffers of the partitions that are not being revoked.
func (s *session) Buffers() []*buffer { return s.member.Buffers() }

// NewDelivery marks a message as redelivered if it may have been delivered
// before, by any session.
func (s *session) NewDelivery(_ *buffer, it *item) broker.Delivery {
	p := it.Value.From
	again := p.Again(it.Offset)
	m := decode(it.Value.Record)
	if it.Attempt > 1 || !again { // otherwise earlier attempts are unknown
		m.Attempt = it.Attempt
	}
	return broker.Delivery{
		Message:     m,
		Redelivered: again,
		Position:    &broker.Position{Log: p.Log, Partition: p.String(), Offset: it.Offset},
		Origin:      fmt.Sprintf("%s@%d", p, it.Offset),
	}
}

// Fetch polls the client for as many records as there is room for.
func (s *session) Fetch(ctx context.Context) {
	s.tracker.Lock()
	room := s.room()
	if room <= 0 {
		s.tracker.Unlock()
		<-ctx.Done()
		return
	}
	added := make(chan struct{})
	defer close(added)
	s.polling = added
	s.tracker.Unlock()

	fetches := s.member.Client.PollRecords(ctx, room)

	s.tracker.Lock()
	defer s.tracker.Unlock()
	for _, fetch := range fetches {
		for _, topic := range fetch.Topics {
			for _, part := range topic.Partitions {
				s.add(ctx, topic.Topic, topic.TopicID, part)
			}
		}
	}
}

// room returns how many records may be fetched. The mutex is held.
func (s *session) room() int {
	buffers, tracked, returned := s.Buffers(), 0, 0
	for _, b := range buffers {
		tracked += b.Tracked()
		returned += b.Returned()
	}
	if s.holds > 0 || tracked >= maxTracked || returned >= s.options.LargestHeld {
		return 0
	}
	return s.tracker.Room(buffers...)
}

// add adds the fetched records of a partition to its buffer. The mutex is held.
func (s *session) add(ctx context.Context, topic string, id [16]byte, part kgo.FetchPartition) {
	at := cluster.TopicPartition{Topic: topic, Number: part.Partition}
	if part.Err != nil {
		if ctx.Err() == nil || !errors.Is(part.Err, ctx.Err()) {
			s.tracker.Fail(explainFetch(at, part.Err))
		}
		return
	}
	p := s.member.Partition(at)
	if len(part.Records) == 0 || p == nil {
		return // the next owner of the partition fetches them again
	}
	if log := cluster.LogName(topic, id); id != [16]byte{} && log != p.Log {
		s.tracker.Fail(fmt.Errorf("kafkabroker: topic %s was recreated: open another session", topic))
		return
	}
	if err := s.member.Add(p, part); err != nil {
		s.tracker.Fail(err)
	}
}

// explainFetch adds to the error of a fetch what to do about it.
func explainFetch(at cluster.TopicPartition, err error) error {
	var session *kgo.ErrGroupSession
	switch {
	case errors.As(err, &session):
		return fmt.Errorf("%w: %w", group.ErrLost, err)
	case errors.Is(err, kerr.OffsetOutOfRange):
		return fmt.Errorf("kafkabroker: %s does not have the next offset of the group: if retention has deleted it, messages "+
			"are lost; set the offset of the group to an existing one, for example to the earliest: %w", at, err)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafkabroker: topic %s was deleted or recreated: open another session: %w", at.Topic, err)
	}
	return fmt.Errorf("kafkabroker: reading %s: open another session: %w", at, err)
}

// interrupt ends a poll in progress and returns when its records are added. No
// record is lost. Later polls return only records that are fetched after this
// call.
func (s *session) interrupt() {
	s.tracker.Lock()
	s.tracker.Broadcast()
	added := s.polling
	s.tracker.Unlock()
	if added != nil {
		<-added
	}
}

func (s *session) Close(ctx context.Context) error {
	s.tracker.Lock()
	again := s.tracker.Close()
	s.tracker.Unlock()
	if again {
		return nil
	}
	return s.member.Leave(ctx)
}
