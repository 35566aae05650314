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
	"github.com/twmb/franz-go/pkg/kgo"
)

// Ack asks nobody, so it does not need its context.
func (s *session) Ack(_ context.Context, ds []broker.Delivery) error {
	return s.desk.Settle(context.Background(), ds, (*item).Settle)
}

// Return keeps messages here, and so asks nobody either.
func (s *session) Return(_ context.Context, ds []broker.Delivery, after time.Duration) error {
	due := time.Now().Add(min(after, longestDelay))
	return s.desk.Settle(context.Background(), ds, func(it *item) { it.Return(due) })
}

// Reject writes messages to the dead-letter topic before it settles them. One that cannot be written comes again.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.options.DeadLetter == "" {
		return s.Ack(ctx, ds)
	}
	if err := s.desk.Check(ds); err != nil {
		return err
	}
	rs := make([]*kgo.Record, len(ds))
	for i, d := range ds {
		rs[i] = deadLetter(s.options.DeadLetter, desk.Value[group.Taken](d).Record, d.Origin, reason)
	}
	var errs []error
	for i, err := range cluster.Write(ctx, s.member.Client, rs) {
		if err == nil {
			errs = append(errs, s.Ack(ctx, ds[i:i+1]))
			continue
		}
		errs = append(errs, fmt.Errorf("kafkabroker: %s was not rejected: %w", ds[i].Origin, err),
			s.Return(ctx, ds[i:i+1], time.Second))
	}
	return errors.Join(errs...)
}

// Seek needs the partition to be with this session, and waits for the group to say so after Open.
func (s *session) Seek(ctx context.Context, to broker.Position) error {
	at, err := cluster.ParsePlace(to.Partition)
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
		return fmt.Errorf("%w: the position is of %s, but the log is %s: it was made anew", broker.ErrInvalid, to.Log, p.Log)
	}
	starts, err := cluster.Oldest(ctx, s.member.Client, at)
	if err != nil {
		return err
	}
	next := to.Offset + 1
	switch start := starts[at]; {
	case to.Offset < 0:
		next = start
	case next < start:
		return fmt.Errorf("kafkabroker: %s has only offset %d and later, so what came behind %d is lost: seek to %d if that "+
			"must be", at, start, to.Offset, start-1)
	}
	return s.move(ctx, p, next)
}

// hold keeps Receive from polling while it is positive.
func (s *session) hold(n int) {
	s.desk.Lock()
	defer s.desk.Unlock()
	s.holds += n
	s.desk.Ring()
}

// move lets the client go on elsewhere. It does nothing for a partition whose offsets are still being fetched, and does
// not say so; but then the offsets that it has do not show the new one.
func (s *session) move(ctx context.Context, p *group.Partition, next int64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		set := map[string]map[int32]kgo.EpochOffset{p.Topic: {p.Number: {Epoch: -1, Offset: next}}}
		s.member.Client.SetOffsets(set)
		moved := s.member.Client.CommittedOffsets()[p.Topic][p.Number].Offset == next
		if err := s.restart(p, next, moved); err != nil || moved {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// restart forgets what came before a Seek, once the client has moved. It is an error if the partition is gone meanwhile.
func (s *session) restart(p *group.Partition, next int64, moved bool) error {
	s.desk.Lock()
	defer s.desk.Unlock()
	switch {
	case s.desk.Ended() != nil:
		return s.desk.Ended()
	case !s.member.Has(p):
		return group.ErrMoved
	case moved:
		p.Lane.Rewind(next, nil)
		s.desk.Ring()
	}
	return nil
}
