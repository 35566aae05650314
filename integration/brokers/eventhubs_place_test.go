//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
)

// placeKeeper is a source that keeps no place, together with what keeps it: it
// passes over what was acknowledged without a gap, in any session. A consumer with
// Checkpoint does so in its database.
type placeKeeper struct {
	broker.Source
	mu    sync.Mutex
	next  map[string]int64          // by partition: everything before it was acknowledged
	acked map[string]map[int64]bool // at or after next
}

func keepPlace(s broker.Source) *placeKeeper {
	return &placeKeeper{Source: s, next: make(map[string]int64), acked: make(map[string]map[int64]bool)}
}

// Location forwards, because brokertest asks for it across restarts.
func (k *placeKeeper) Location(ctx context.Context) (map[string]string, error) {
	return k.Source.(broker.Located).Location(ctx)
}

// LagFrom forwards, because the positions are the caller's.
func (k *placeKeeper) LagFrom(ctx context.Context, at map[string]broker.Position) (broker.Lag, error) {
	return k.Source.(broker.LogLagger).LagFrom(ctx, at)
}

func (k *placeKeeper) Open(ctx context.Context, window int) (broker.Session, error) {
	s, err := k.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return &keptSession{s, k}, nil
}

// note notes that a message was acknowledged.
func (k *placeKeeper) note(p *broker.Position) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.acked[p.Partition] == nil {
		k.acked[p.Partition] = make(map[int64]bool)
	}
	k.acked[p.Partition][p.Offset] = true
	for k.acked[p.Partition][k.next[p.Partition]] {
		delete(k.acked[p.Partition], k.next[p.Partition])
		k.next[p.Partition]++
	}
}

// forget notes that messages after p are wanted again.
func (k *placeKeeper) forget(p broker.Position) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next[p.Partition] = min(k.next[p.Partition], p.Offset+1)
}

func (k *placeKeeper) passed(p *broker.Position) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return p.Offset < k.next[p.Partition]
}

type keptSession struct {
	broker.Session
	keeper *placeKeeper
}

func (s *keptSession) LongestDelay() time.Duration { return s.Session.(broker.Delayer).LongestDelay() }

func (s *keptSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		ds, err := s.Session.Receive(ctx, limit)
		if err != nil {
			return nil, err
		}
		var passed []broker.Delivery
		ds = slices.DeleteFunc(ds, func(d broker.Delivery) bool {
			if s.keeper.passed(d.Position) {
				passed = append(passed, d)
				return true
			}
			return false
		})
		if len(passed) > 0 {
			_ = s.Session.Ack(ctx, passed) // they may have moved
		}
		if len(ds) > 0 {
			return ds, nil
		}
	}
}

func (s *keptSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ds, func(one []broker.Delivery) error { return s.Session.Ack(ctx, one) })
}

func (s *keptSession) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.settle(ds, func(one []broker.Delivery) error { return s.Session.Reject(ctx, one, reason) })
}

func (s *keptSession) settle(ds []broker.Delivery, one func([]broker.Delivery) error) error {
	var errs []error
	for i := range ds {
		err := one(ds[i : i+1])
		if err == nil && ds[i].Position != nil {
			s.keeper.note(ds[i].Position)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *keptSession) Seek(ctx context.Context, p broker.Position) error {
	s.keeper.forget(p)
	return s.Session.(broker.Seeker).Seek(ctx, p)
}
