package servicebusbroker

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	renewTick  = 100 * time.Millisecond // how often it is looked for locks to renew
	renewPause = 500 * time.Millisecond // after a renewal that failed
	renewTime  = 10 * time.Second       // of one renewal
	renewLimit = 10 * time.Minute       // Service Bus locks for five minutes at most
)

// renewal returns when to renew a lock: after half of its time. If the clock of
// this machine is slow by less than the lock duration, that is early enough.
func renewal(lockTime time.Duration) time.Time {
	return time.Now().Add(max(min(lockTime, renewLimit)/2, renewTick))
}

// lockTime returns how long a message is still locked.
func lockTime(raw *azservicebus.ReceivedMessage) time.Duration {
	if raw.LockedUntil == nil {
		return renewPause
	}
	return time.Until(*raw.LockedUntil)
}

// renew renews locks until the session ends.
func (s *session) renew() {
	tick := time.NewTicker(renewTick)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			s.renewDue()
		}
	}
}

func (s *session) renewDue() {
	now := time.Now()
	s.mu.Lock()
	var as []*arrival
	var hs []*heldSession
	for a := range s.all {
		if a.held == nil && now.After(a.renewAt) {
			as = append(as, a)
		}
	}
	for h := range s.held {
		if !h.lost && now.After(h.renewAt) {
			hs = append(hs, h)
		}
	}
	s.mu.Unlock()
	each(as, s.renewMessage)
	for _, h := range hs {
		s.loops.Go(func() { s.renewHeld(h) })
	}
}

// renewMessage renews the lock of a message. If another has it, the message leaves
// the window, and cannot be settled here.
func (s *session) renewMessage(a *arrival) error {
	ctx, cancel := context.WithTimeout(s.ctx, renewTime)
	defer cancel()
	err := s.queue.RenewMessageLock(ctx, a.raw, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		a.renewAt = renewal(lockTime(a.raw))
	case isLost(err):
		s.drop(a)
	default:
		a.renewAt = time.Now().Add(renewPause)
	}
	return err
}

// renewHeld renews the lock of a session of Service Bus.
func (s *session) renewHeld(h *heldSession) {
	if !h.renewing.TryLock() {
		return
	}
	defer h.renewing.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, renewTime)
	defer cancel()
	err := h.receiver.RenewSessionLock(ctx, nil)
	if isLost(err) {
		s.lose(h)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		h.renewAt = time.Now().Add(renewPause)
		return
	}
	h.renewAt = renewal(h.lockTime)
}
