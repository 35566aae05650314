//go:build go1.25

package brokertest_test

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
)

// settles removes deliveries from those in flight, and returns those that were.
func (s *buggySession) settles(ds []broker.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		delete(s.out, d.Tag)
		s.order = slices.DeleteFunc(s.order, func(tag any) bool { return tag == d.Tag })
	}
}

func (s *buggySession) Ack(ctx context.Context, ds []broker.Delivery) error {
	if len(ds) == 0 {
		return s.inner.Ack(ctx, ds)
	}
	named := ds
	ds = s.twice(ds)
	switch s.bug {
	case "Ack does nothing":
		return nil
	case "Ack of the first only":
		ds = ds[:1]
	case "Ack of the oldest only":
		ds = s.oldest(ds)
	case "Ack of all before":
		ds = s.upTo(ds)
	case "Ack of all after":
		ds = s.after(ds)
	case "Acks meet":
		s.mu.Lock()
		s.stuck++
		busy := s.stuck > 1
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
		s.stuck--
		s.mu.Unlock()
		if busy {
			return nil
		}
	case "acknowledged when received":
		return nil
	}
	s.settles(named)
	return s.sound(s.inner.Ack(ctx, ds))
}

// twice has the bugs of settling a delivery that was settled already. It returns
// the deliveries to settle.
func (s *buggySession) twice(ds []broker.Delivery) []broker.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := slices.DeleteFunc(slices.Clone(ds), func(d broker.Delivery) bool { return s.out[d.Tag].Tag == nil })
	if len(fresh) == len(ds) || s.closed {
		return ds
	}
	switch s.bug {
	case "settled twice without a word":
		return fresh
	case "settled twice with the others":
		return s.named(s.order)
	case "one that was settled is all that is seen":
		return slices.DeleteFunc(slices.Clone(ds), func(d broker.Delivery) bool { return slices.Contains(s.order, d.Tag) })
	}
	return ds
}

// sound has the bugs of settling a delivery that is not in flight.
func (s *buggySession) sound(err error) error {
	switch {
	case err != nil && s.has("settled after Close") && s.isClosed(),
		err != nil && s.has("settled in a broken session") && !s.isClosed() && s.restarts.Load() > 0:
		return nil
	}
	return err
}

func (s *buggySession) oldest(ds []broker.Delivery) []broker.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		return nil
	}
	first := s.order[0]
	return slices.DeleteFunc(slices.Clone(ds), func(d broker.Delivery) bool { return d.Tag != first })
}

func (s *buggySession) upTo(ds []broker.Delivery) []broker.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.named(s.order[:1+slices.Index(s.order, ds[len(ds)-1].Tag)])
}

func (s *buggySession) after(ds []broker.Delivery) []broker.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.order, ds[0].Tag)
	if i < 0 {
		return nil
	}
	return s.named(s.order[i:])
}

func (s *buggySession) named(tags []any) (ds []broker.Delivery) {
	for _, tag := range tags {
		ds = append(ds, s.out[tag])
	}
	return ds
}

func (s *buggySession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	named := ds
	ds = s.twice(ds)
	s.settles(named)
	switch s.bug {
	case "Return acknowledges":
		return s.inner.Ack(ctx, ds)
	case "delay ignored":
		after = 0
	case "delay too short":
		after = after * 9 / 10
	case "held back for ever":
		if after > 0 {
			after = 24 * time.Hour
		}
	case "held back alone":
		if after > 0 {
			s.mu.Lock()
			s.held = time.Now().Add(after)
			s.mu.Unlock()
		}
	case "returned with the session":
		return nil
	case "room lost by Return":
		s.mu.Lock()
		s.stuck += len(ds)
		s.mu.Unlock()
	}
	return s.sound(s.inner.Return(ctx, ds, after))
}

func (s *buggySession) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	named := ds
	ds = s.twice(ds)
	s.settles(named)
	switch s.bug {
	case "Reject returns":
		return s.inner.Return(ctx, ds, 0)
	case "Reject drops":
		return s.inner.Ack(ctx, ds)
	case "reason dropped":
		reason = ""
	case "Reject takes the others along":
		s.mu.Lock()
		ds = append(slices.Clone(ds), s.named(s.order)...)
		s.mu.Unlock()
	case "room lost by Reject":
		s.mu.Lock()
		s.stuck += len(ds)
		s.mu.Unlock()
	}
	return s.sound(s.inner.Reject(ctx, ds, reason))
}
