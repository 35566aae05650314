package eventhubsbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/internal/turn"
)

// longestDelay limits how long a returned message is kept in memory.
const longestDelay = time.Minute

// errMoved is returned for a delivery whose partition has moved.
var errMoved = fmt.Errorf("eventhubsbroker: the partition has moved, and the message comes again elsewhere: %w", broker.ErrSettled)

// session reads the partitions that the members of the group leave to it.
type session struct {
	*source
	client  *azeventhubs.ConsumerClient
	created time.Time // when the hub was created
	log     string    // the name of the log, which changes if the hub is recreated
	ids     []string  // of all partitions
	members *members  // used by one goroutine at a time

	ctx  context.Context // of the goroutines
	end  context.CancelFunc
	work sync.WaitGroup
	look chan struct{} // has an element if balance has to look at once

	verifying turn.Turn
	verified  time.Time // when the hub was last known to be the same; guarded by verifying

	tracker *inflight.Tracker[event] // guards the fields below
	readers map[string]*reader       // by partition
}

// event is an event in a buffer.
type event struct {
	from *reader
	data *azeventhubs.ReceivedEventData
}

type (
	buffer = inflight.Buffer[event]
	item   = inflight.Item[event]
)

var (
	_ broker.Seeker  = (*session)(nil)
	_ broker.Delayer = (*session)(nil)
)

// begin finds out what the hub is, becomes a member, and starts to read.
func (s *session) begin(ctx context.Context) error {
	s.verified = time.Now()
	hub, err := s.properties(ctx, s.client)
	if err != nil {
		return err
	}
	s.created, s.ids = hub.CreatedOn, hub.PartitionIDs
	s.log = logName(s.hub, hub)
	s.members = newMembers(s.source.members, s.log, s.group, len(s.ids), s.options.Lease)
	rank, of, err := s.members.look(ctx)
	if err != nil {
		_ = s.members.leave(context.WithoutCancel(ctx)) // otherwise its lease lapses
		return fmt.Errorf("eventhubsbroker: %s: the other sessions cannot be found in the store: %w", s.Name(), err)
	}
	s.assign(rank, of)
	s.work.Add(1)
	go s.balance()
	return nil
}

// balance keeps the membership, and starts and stops readers as members come and
// go. While the store cannot be reached, everything stays as it is: nothing can be
// committed either. It also checks the hub, because a receiver that waits for a
// message that another hub of the name may never get would wait in silence.
func (s *session) balance() {
	defer s.work.Done()
	tick := time.NewTicker(max(s.options.Lease/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		case <-s.look:
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.options.Lease/3)
		rank, of, err := s.members.look(ctx)
		if err == nil {
			s.assign(rank, of)
		}
		if err := s.inspect(ctx); err != nil && ctx.Err() == nil {
			s.fail(err)
		}
		cancel()
	}
}

// inspect checks that the hub is the same, and has all that was read of it.
func (s *session) inspect(ctx context.Context) error {
	if err := s.verify(ctx); err != nil {
		return err
	}
	for id, last := range s.lastRead() {
		has, err := s.partition(ctx, s.client, id)
		if err != nil {
			return err
		}
		if has.LastEnqueuedSequenceNumber < last {
			return cmp.Or(s.verify(ctx), endLost(s.hub+"/"+id, has, last)) // it may have been recreated just now
		}
	}
	return nil
}

// lastRead returns the sequence numbers up to which partitions were read.
func (s *session) lastRead() map[string]int64 {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	last := make(map[string]int64)
	for id, r := range s.readers {
		if next := r.buffer.Next(); next > 0 {
			last[id] = next - 1
		}
	}
	return last
}

// assign starts to read the partitions of a rank, and gives up all others.
func (s *session) assign(rank, of int) {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	if s.tracker.Err() != nil {
		return
	}
	for i, id := range s.ids {
		r := s.readers[id]
		switch own := rank >= 0 && i%of == rank; {
		case own && r == nil:
			s.start(id)
		case !own && r != nil && !r.leaving:
			r.leaving = true
			s.work.Add(1)
			go s.giveUp(r)
		}
	}
	s.tracker.Broadcast()
}

// start starts a reader. The mutex is held.
func (s *session) start(id string) {
	r := &reader{session: s, id: id, name: s.hub + "/" + id, buffer: inflight.NewBuffer[event](0), from: oldest}
	r.ctx, r.end = context.WithCancel(s.ctx)
	s.readers[id] = r
	s.work.Add(1)
	go r.run()
}

// giveUp ends a reader once its deliveries in flight are settled, or after
// HandOver. Then the service lets another session read the partition.
func (s *session) giveUp(r *reader) {
	defer s.work.Done()
	ctx, cancel := context.WithTimeout(r.ctx, s.options.HandOver)
	defer cancel()
	_ = s.tracker.WaitUntil(ctx, func() bool { return r.buffer.InFlight() == 0 })
	s.drop(r)
	s.lookAgain() // it may have been assigned again meanwhile
}

// lookAgain makes balance look for the members now.
func (s *session) lookAgain() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// drop ends a reader and releases its messages.
func (s *session) drop(r *reader) {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	r.end()
	if s.readers[r.id] == r {
		delete(s.readers, r.id)
		r.buffer.Reset(r.buffer.Next(), errMoved)
		s.tracker.Broadcast()
	}
}

// overtaken ends a reader whose partition another receiver has taken.
func (s *session) overtaken(r *reader) {
	s.drop(r)
	s.lookAgain()
}

// fail ends the session with an error.
func (s *session) fail(err error) {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	s.tracker.Fail(err)
}

// verify checks that no partition was added, and that the hub was not recreated,
// because the client reconnects to whatever has its name, and the events of the
// new hub have sequence numbers that events of the old one had.
func (s *session) verify(ctx context.Context) error {
	if err := s.verifying.Take(ctx); err != nil {
		return err
	}
	defer s.verifying.Give()
	now := time.Now()
	if now.Sub(s.verified) < s.fresh {
		return nil
	}
	hub, err := s.properties(ctx, s.client)
	if err != nil {
		return err
	}
	if !hub.CreatedOn.Equal(s.created) {
		return fmt.Errorf("eventhubsbroker: the hub %s was recreated: this one was created at %s, and the one that was read at %s",
			s.hub, hub.CreatedOn.UTC().Format(time.RFC3339Nano), s.created.UTC().Format(time.RFC3339Nano))
	}
	if n := len(hub.PartitionIDs); n != len(s.ids) {
		return fmt.Errorf("eventhubsbroker: the hub %s has %d partitions, and had %d: open another session", s.hub, n, len(s.ids))
	}
	s.verified = now
	return nil
}

func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return s.tracker.Receive(ctx, limit, s)
}

// Buffers returns the buffers of the partitions that are not being given up.
func (s *session) Buffers() (buffers []*buffer) {
	for _, id := range s.ids {
		if r := s.readers[id]; r != nil && !r.leaving {
			buffers = append(buffers, r.buffer)
		}
	}
	return buffers
}

// NewDelivery marks every message as redelivered, because the service does not
// know. Consumers compare positions.
func (s *session) NewDelivery(_ *buffer, it *item) broker.Delivery {
	r := it.Value.from
	m := decode(s.hub, it.Value.data)
	if it.Attempt > 1 { // otherwise the attempts of earlier sessions are unknown
		m.Attempt = it.Attempt
	}
	return broker.Delivery{
		Message:     m,
		Redelivered: true,
		Position:    &broker.Position{Log: s.log, Partition: r.name, Offset: it.Offset},
		Origin:      r.name + "@" + strconv.FormatInt(it.Offset, 10),
	}
}

// Fetch waits, because the readers add the messages.
func (s *session) Fetch(ctx context.Context) { <-ctx.Done() }

// Ack makes room in the window. It tells the service nothing.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.tracker.Settle(ctx, ds, (*item).Settle)
}

// Reject acknowledges messages. The hub keeps them.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, _ string) error {
	return s.Ack(ctx, ds)
}

// Return lets messages be delivered again.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	due := time.Now().Add(min(after, longestDelay))
	return s.tracker.Settle(ctx, ds, func(it *item) { it.Return(due) })
}

// LongestDelay is short, because returned messages are kept in memory.
func (s *session) LongestDelay() time.Duration { return longestDelay }

// Seek requires that this session reads the partition.
func (s *session) Seek(ctx context.Context, to broker.Position) error {
	id, ok := strings.CutPrefix(to.Partition, s.hub+"/")
	if !ok || to.Log != s.log {
		return fmt.Errorf("%w: %s has no position in the log %q, partition %q", broker.ErrInvalid, s.Name(), to.Log, to.Partition)
	}
	if err := s.verify(ctx); err != nil {
		return err
	}
	next := int64(oldest)
	if to.Offset >= 0 {
		next = to.Offset + 1
		has, err := s.partition(ctx, s.client, id)
		if err != nil {
			return err
		}
		if err := lostBefore(to.Partition, has, next); err != nil {
			return err
		}
		if has.LastEnqueuedSequenceNumber < to.Offset {
			return fmt.Errorf("%w: %w", broker.ErrInvalid, endLost(to.Partition, has, to.Offset))
		}
	}
	s.tracker.Lock()
	defer s.tracker.Unlock()
	r := s.readers[id]
	switch {
	case s.tracker.Err() != nil:
		return s.tracker.Err()
	case r == nil || r.leaving:
		return fmt.Errorf("eventhubsbroker: %s is not read by this session: seek when its messages come", to.Partition)
	}
	r.move(next)
	s.tracker.Broadcast()
	return nil
}

// lostBefore returns an error if retention has deleted messages from next on.
func lostBefore(partition string, has azeventhubs.PartitionProperties, next int64) error {
	if start := has.BeginningSequenceNumber; start > next {
		return fmt.Errorf("eventhubsbroker: %s starts at sequence number %d, and the session needs messages from %d on: retention has "+
			"deleted some that were not handled; to skip them, set the position to %d", partition, start, next, start-1)
	}
	return nil
}

// endLost is the error of a partition that does not reach as far as a position.
func endLost(partition string, has azeventhubs.PartitionProperties, position int64) error {
	return fmt.Errorf("eventhubsbroker: %s ends at sequence number %d, and the position is %d: the hub has lost its end, or is another "+
		"one, and messages with these numbers would be taken for handled; give the consumer a new name, or set its position if you "+
		"know where to continue", partition, has.LastEnqueuedSequenceNumber, position)
}

// Close ends the readers before the membership, so that their successors find the
// partitions free.
func (s *session) Close(ctx context.Context) error {
	s.tracker.Lock()
	again := s.tracker.Close()
	s.end()
	s.tracker.Unlock()
	if again {
		return nil
	}
	err := s.client.Close(ctx)
	s.work.Wait()
	return errors.Join(err, s.members.leave(ctx))
}
