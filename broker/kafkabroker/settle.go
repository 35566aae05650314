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
	"github.com/twmb/franz-go/pkg/kgo"
)

// Ack does not use its context, because the group commits later.
func (s *session) Ack(_ context.Context, ds []broker.Delivery) error {
	return s.tracker.Settle(context.Background(), ds, (*item).Settle)
}

// Return keeps messages in memory and does not use its context.
func (s *session) Return(_ context.Context, ds []broker.Delivery, after time.Duration) error {
	due := time.Now().Add(min(after, longestDelay))
	return s.tracker.Settle(context.Background(), ds, func(it *item) { it.Return(due) })
}

// Reject writes messages to the dead-letter topic and then settles them. A
// message that cannot be written is returned. Those that are not in flight any
// more do not hold up the others.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.options.DeadLetter == "" {
		return s.Ack(ctx, ds)
	}
	ds, lost := s.tracker.Held(ds)
	rs := make([]*kgo.Record, len(ds))
	for i, d := range ds {
		rs[i] = deadLetter(s.options.DeadLetter, inflight.Value[group.Fetched](d).Record, d.Origin, reason)
	}
	errs := []error{lost}
	for i, err := range cluster.Write(ctx, s.member.Client, rs) {
		if err == nil {
			errs = append(errs, s.Ack(ctx, ds[i:i+1]))
			continue
		}
		errs = append(errs, fmt.Errorf("kafkabroker: %s could not be rejected: %w", ds[i].Origin, err),
			s.Return(ctx, ds[i:i+1], time.Second))
	}
	return errors.Join(errs...)
}

// Seek requires that this session owns the partition. After Open, it waits until
// the group has assigned its partitions.
func (s *session) Seek(ctx context.Context, to broker.Position) error {
	at, err := cluster.ParseTopicPartition(to.Partition)
	if err != nil {
		return err
	}
	s.hold(1)
	defer s.hold(-1)
	s.interrupt()
	p, err := s.member.Own(ctx, at)
	if err != nil {
		return err
	}
	if p.Log != to.Log {
		return fmt.Errorf("%w: the position is of %s, and the log is now %s: it was recreated", broker.ErrInvalid, to.Log, p.Log)
	}
	starts, err := cluster.Oldest(ctx, s.member.Client, at)
	if err != nil {
		return err
	}
	start, next := starts[at], to.Offset+1
	switch {
	case to.Offset < 0:
		return s.move(ctx, p, start, 0)
	case next >= start:
		return s.move(ctx, p, next, 0)
	case s.isEmpty(p, next, start): // what is deleted were no messages
		return s.move(ctx, p, start, start-next)
	}
	return fmt.Errorf("kafkabroker: %s starts at offset %d, so messages after %d are lost: to skip them, seek to %d", at, start, to.Offset, start-1)
}

func (s *session) isEmpty(p *group.Partition, from, to int64) bool {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	return p.IsEmpty(from, to)
}

// hold adds n to the holds. Receive does not poll while holds is above 0.
func (s *session) hold(n int) {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	s.holds += n
	s.tracker.Broadcast()
}

// move makes the client continue at an offset, before which there is a gap without
// messages. The client ignores SetOffsets for
// a partition whose offsets it is still fetching, without an error. So move
// repeats it until the client shows the new offset.
func (s *session) move(ctx context.Context, p *group.Partition, next, gap int64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		set := map[string]map[int32]kgo.EpochOffset{p.Topic: {p.Number: {Epoch: -1, Offset: next}}}
		s.member.Client.SetOffsets(set)
		moved := s.member.Client.CommittedOffsets()[p.Topic][p.Number].Offset == next
		if err := s.restart(p, next, gap, moved); err != nil || moved {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// restart resets the buffer of a partition once the client has moved. It returns
// an error if the partition was revoked in the meantime.
func (s *session) restart(p *group.Partition, next, gap int64, moved bool) error {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	switch {
	case s.tracker.Err() != nil:
		return s.tracker.Err()
	case !s.member.Has(p):
		return group.ErrMoved
	case moved:
		p.Start(next, gap, nil)
		s.tracker.Broadcast()
	}
	return nil
}
