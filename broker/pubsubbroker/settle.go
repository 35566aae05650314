package pubsubbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/googleapis/gax-go/v2/apierror"
)

// longestDelay is the longest deadline of the service.
const longestDelay = 10 * time.Minute

// The limits of a request that names deliveries.
const (
	requestIDs   = 1000
	requestBytes = 500_000 // of the 512 KiB that the service accepts
)

var errSettled = fmt.Errorf("pubsubbroker: %w", broker.ErrSettled)

// call is a request of the service for deliveries.
type call func(ctx context.Context, ackIDs []string) error

// Ack acknowledges messages. With exactly-once delivery, the service tells which
// acknowledgements were late.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	as, err := s.find(ds)
	return errors.Join(err, s.settle(ctx, as, s.acknowledge))
}

// Return lets messages be delivered again after the delay, up to [longestDelay].
// Messages of the same ordering keys that came later and were not received yet go
// with them, because the service delivers them again.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	as, err := s.find(ds)
	seconds := int32((min(max(after, 0), longestDelay) + time.Second - 1) / time.Second)
	later := s.laterThan(as)
	s.extending.Lock() // an extension that is on its way would change the delay
	s.stopExtending(slices.Concat(as, later))
	s.extending.Unlock()
	err = errors.Join(err, s.settle(ctx, slices.Concat(as, later), s.modifier(seconds)))
	s.forget(slices.Values(later)) // nobody has them who could settle them
	return err
}

// stopExtending lets messages come again after the deadline if they are not
// settled.
func (s *session) stopExtending(as []*arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range as {
		a.tried = true
	}
}

// LongestDelay returns the longest delay of Return.
func (*session) LongestDelay() time.Duration { return longestDelay }

// laterThan returns the waiting messages that follow one of as in the order of
// its ordering key.
func (s *session) laterThan(as []*arrival) (later []*arrival) {
	if !s.opened.GetEnableMessageOrdering() {
		return nil
	}
	first := make(map[string]uint64)
	for _, a := range as {
		key := a.message.OrderingKey
		if n, ok := first[key]; key != "" && (!ok || a.number < n) {
			first[key] = a.number
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool {
		n, ok := first[a.message.OrderingKey]
		follows := ok && a.number > n
		if follows {
			later = append(later, a)
		}
		return follows
	})
	return later
}

// Reject acknowledges messages. If there is a topic for dead letters, it
// publishes them there first.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	as, err := s.find(ds)
	defer s.stopExtending(as) // also those without a dead letter
	if s.dead == "" {
		return errors.Join(err, s.settle(ctx, as, s.acknowledge))
	}
	var fresh, stored []*arrival // dead letters may be stored since an earlier try
	s.mu.Lock()
	for _, a := range as {
		if a.dead {
			stored = append(stored, a)
		} else {
			fresh = append(fresh, a)
		}
	}
	s.mu.Unlock()
	fresh, leaseErr := s.lease(ctx, fresh) // another session may have them
	fresh, publishErr := s.publishDead(ctx, fresh, reason)
	return errors.Join(err, leaseErr, publishErr, s.settle(ctx, append(stored, fresh...), s.acknowledge))
}

// KeepsRejected reports whether there is a topic for dead letters.
func (s *session) KeepsRejected() bool { return s.dead != "" }

// publishDead publishes dead letters, and returns the messages whose dead letters
// are stored.
func (s *session) publishDead(ctx context.Context, as []*arrival, reason string) (stored []*arrival, err error) {
	for _, a := range as {
		_, publishErr := s.broker.client.TopicAdminClient.Publish(ctx, &pubsubpb.PublishRequest{
			Topic:    s.dead,
			Messages: []*pubsubpb.PubsubMessage{deadLetter(a.received.GetMessage(), s.topic, reason)},
		}, once)
		if publishErr != nil {
			err = errors.Join(err, fmt.Errorf("pubsubbroker: publish a dead letter to the topic %q: %w", s.dead, explain(publishErr)))
			continue
		}
		stored = append(stored, a)
		s.mu.Lock()
		a.dead = true
		s.mu.Unlock()
	}
	return stored, err
}

// find returns the messages of unsettled deliveries.
func (s *session) find(ds []broker.Delivery) (as []*arrival, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && s.all[a] {
			as = append(as, a)
		} else {
			err = errSettled
		}
	}
	return as, err
}

// settle settles messages. Those that the service did not answer for stay in the
// window and may be settled again, until their leases end. Those that were lost
// leave it.
func (s *session) settle(ctx context.Context, as []*arrival, do call) error {
	s.stopExtending(as)
	results, err := s.each(ctx, as, do)
	s.forget(maps.Keys(results))
	return err
}

// lease extends the leases of messages, and returns those that the session still
// has.
func (s *session) lease(ctx context.Context, as []*arrival) (leased []*arrival, err error) {
	now := time.Now()
	results, err := s.each(ctx, as, s.modifier(int32(s.deadline/time.Second)))
	s.mu.Lock()
	for a, lost := range results {
		if lost == nil {
			a.leased = now
			leased = append(leased, a)
		}
	}
	s.mu.Unlock()
	s.forget(func(yield func(*arrival) bool) {
		for a, lost := range results {
			if lost != nil && !yield(a) {
				return
			}
		}
	})
	slices.SortFunc(leased, byNumber)
	return leased, err
}

// forget removes messages that the session no longer has.
func (s *session) forget(as iter.Seq[*arrival]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range as {
		delete(s.all, a)
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool { return !s.all[a] })
	wake.Signal(s.demand)
}

func (s *session) acknowledge(ctx context.Context, ackIDs []string) error {
	return s.broker.client.SubscriptionAdminClient.Acknowledge(ctx,
		&pubsubpb.AcknowledgeRequest{Subscription: s.name, AckIds: ackIDs}, once)
}

// modifier returns the call that sets the time after which messages come again.
func (s *session) modifier(seconds int32) call {
	return func(ctx context.Context, ackIDs []string) error {
		return s.broker.client.SubscriptionAdminClient.ModifyAckDeadline(ctx,
			&pubsubpb.ModifyAckDeadlineRequest{Subscription: s.name, AckIds: ackIDs, AckDeadlineSeconds: seconds}, once)
	}
}

// modify sets the time after which messages come again.
func (s *session) modify(ctx context.Context, as []*arrival, seconds int32) (results map[*arrival]error, err error) {
	return s.each(ctx, as, s.modifier(seconds))
}

// each makes a call for messages, in the order in which they came. The results
// are of those that the service has answered for: an error says that the message
// is no longer the session's.
func (s *session) each(ctx context.Context, as []*arrival, do call) (results map[*arrival]error, err error) {
	results = make(map[*arrival]error, len(as))
	as = slices.SortedFunc(slices.Values(as), byNumber)
	for len(as) > 0 {
		n, ids := requestOf(as)
		failed := do(ctx, ids)
		reasons := reasonsOf(failed, ids)
		lost := 0
		for i, a := range as[:n] {
			reason, ok := reasons[ids[i]]
			switch {
			case failed == nil || len(reasons) > 0 && !ok: // the service names all that failed
				results[a] = nil
			case strings.HasPrefix(reason, permanentFailure):
				results[a] = errSettled
				lost++
			}
		}
		if failed != nil && lost < max(len(reasons), 1) {
			err = errors.Join(err, s.explain(failed))
		} else if lost > 0 {
			err = errors.Join(err, fmt.Errorf("pubsubbroker: %s: the deadline of %d of %d deliveries had passed, and they come again: %w",
				s.Name(), lost, n, broker.ErrSettled))
		}
		as = as[n:]
	}
	return results, err
}

// permanentFailure begins the reason of a delivery that the service will not
// settle. Other reasons are transient.
const permanentFailure = "PERMANENT_FAILURE"

// reasonsOf returns why the service did not settle deliveries, by their
// identifiers. Only exactly-once delivery has such reasons.
func reasonsOf(err error, ackIDs []string) map[string]string {
	failed, ok := apierror.FromError(err)
	if !ok {
		return nil
	}
	reasons := make(map[string]string)
	for _, id := range ackIDs {
		if reason, ok := failed.Metadata()[id]; ok {
			reasons[id] = reason
		}
	}
	return reasons
}

// requestOf returns how many messages fit into a request, and their identifiers.
func requestOf(as []*arrival) (n int, ids []string) {
	size := 0
	for _, a := range as {
		size += len(a.ackID()) + perMessage
		if n > 0 && (n == requestIDs || size > requestBytes) {
			break
		}
		ids = append(ids, a.ackID())
		n++
	}
	return n, ids
}

func byNumber(a, b *arrival) int { return cmp.Compare(a.number, b.number) }

func inOrder(as map[*arrival]bool) []*arrival { return slices.SortedFunc(maps.Keys(as), byNumber) }
