package eventhubsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once/internal/backoff"
)

// oldest is the sequence number to start at for the oldest message.
const oldest = -1

// The owner levels of receivers. The service refuses one that is lower than that
// of another receiver of the partition, and cuts off a receiver when one of the
// same or a higher level comes. So a receiver that asks is refused while somebody
// owns the partition.
const (
	asking = int64(0)
	owning = int64(1)
)

const (
	askTime     = time.Second // how long to wait for a refusal
	maxPrefetch = 300         // messages that the client fetches in advance
	maxReturned = 1000        // returned messages of a partition, at which no new ones are fetched
)

// ended is a context that has ended: the client returns what it has fetched.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// reader reads a partition.
type reader struct {
	session *session
	id      string
	name    string // of the partition, unique among those of all hubs
	ctx     context.Context
	end     context.CancelFunc

	// The mutex of the tracker guards the fields below.
	buffer  *buffer
	leaving bool               // it is being given up; deliveries in flight may still be settled
	from    int64              // where to start
	again   context.CancelFunc // ends the reading in progress, because from has changed; nil: there is none
}

func (r *reader) String() string { return r.name }

// move makes the reader continue at a sequence number. The mutex is held.
func (r *reader) move(next int64) {
	r.from = next
	r.buffer.Reset(max(next, 0), nil)
	if r.again != nil {
		r.again()
	}
}

// run reads until the reader ends, or its partition is lost.
func (r *reader) run() {
	defer r.session.work.Done()
	err := r.takeOver(r.ctx)
	for err == nil {
		err = r.read()
	}
	switch {
	case r.ctx.Err() != nil:
	case refused(err): // no member has a higher level
		r.session.fail(fmt.Errorf("eventhubsbroker: %s is read with an owner level by a program that is no member of the group: "+
			"give it a consumer group of its own: %w", r, err))
	case stolen(err):
		r.session.overtaken(r)
	default:
		r.session.fail(err)
	}
}

// takeOver waits until the earlier owner of the partition has given it up. If that
// takes too long, it is cut off.
func (r *reader) takeOver(ctx context.Context) error {
	limit := 2 * r.session.options.HandOver
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := r.ask(ctx)
		if stolen(err) {
			err = backoff.Sleep(ctx, min(limit/10, time.Second))
			if err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return r.ctx.Err()
		}
		return err
	}
}

// ask returns nil if no receiver owns the partition.
func (r *reader) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := r.open(oldest, asking, -1)
	if err != nil {
		return err
	}
	defer r.close(client)
	_, err = client.ReceiveEvents(ctx, 1, nil)
	if ctx.Err() != nil && !stolen(err) {
		return nil
	}
	return err
}

// open returns a client of the partition. It connects on first use.
func (r *reader) open(from, level int64, prefetch int32) (*azeventhubs.PartitionClient, error) {
	start := azeventhubs.StartPosition{SequenceNumber: &from, Inclusive: true}
	if from == oldest {
		first := true
		start = azeventhubs.StartPosition{Earliest: &first}
	}
	return r.session.client.NewPartitionClient(r.id,
		&azeventhubs.PartitionClientOptions{StartPosition: start, OwnerLevel: &level, Prefetch: prefetch})
}

// close closes a client of the partition, so that the service lets others read.
func (r *reader) close(client *azeventhubs.PartitionClient) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 5*time.Second)
	defer cancel()
	_ = client.Close(ctx) // if it fails, the connection is broken, or the next owner cuts it off
}

// read reads from a sequence number on. It returns nil when the reader was moved.
func (r *reader) read() error {
	from, ctx, cancel := r.begin()
	defer cancel()
	client, err := r.open(from, owning, int32(min(max(r.session.tracker.Window(), 2), maxPrefetch)))
	if err != nil {
		return err
	}
	defer r.close(client)
	for err == nil {
		from, err = r.step(ctx, client, from)
	}
	if ctx.Err() != nil && r.ctx.Err() == nil {
		return nil
	}
	return err
}

// begin returns where to read, and a context that ends when the reader is moved.
func (r *reader) begin() (from int64, ctx context.Context, cancel context.CancelFunc) {
	r.session.tracker.Lock()
	defer r.session.tracker.Unlock()
	ctx, cancel = context.WithCancel(r.ctx)
	r.again = cancel
	return r.from, ctx, cancel
}

// step receives messages when there is room for half a window of them, so that a
// busy session gets many with each call of the client. It returns the sequence
// number of the next one.
func (r *reader) step(ctx context.Context, client *azeventhubs.PartitionClient, next int64) (int64, error) {
	room := 0
	err := r.session.tracker.WaitUntil(ctx, func() bool {
		if !r.leaving && r.buffer.Returned() < maxReturned {
			room = r.session.tracker.Window() - r.buffer.Unread()
		}
		return room > 0 && room >= r.session.tracker.Window()/2
	})
	if err != nil {
		return next, err
	}
	events, err := receive(ctx, client, room)
	if len(events) > 0 {
		var failed error
		if next, failed = r.add(ctx, events, next); failed != nil {
			return next, failed
		}
	}
	return next, err
}

// receive waits for a message and returns those that have come, up to limit.
func receive(ctx context.Context, client *azeventhubs.PartitionClient, limit int) ([]*azeventhubs.ReceivedEventData, error) {
	events, err := client.ReceiveEvents(ctx, 1, nil)
	if err != nil || limit == 1 {
		return events, err
	}
	more, err := client.ReceiveEvents(ended, limit-1, nil)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return append(events, more...), err
}

// add adds messages to the buffer, if they are the next ones of the hub that the
// session was opened for.
func (r *reader) add(ctx context.Context, events []*azeventhubs.ReceivedEventData, next int64) (int64, error) {
	if err := r.session.verify(ctx); err != nil {
		return next, err
	}
	after, err := r.check(ctx, events, next)
	if err != nil {
		return next, err
	}
	t := r.session.tracker
	t.Lock()
	defer t.Unlock()
	if err := context.Cause(ctx); err != nil { // it was moved, or is no reader of the session any more
		return next, err
	}
	for _, e := range events {
		r.buffer.Add(e.SequenceNumber, event{r, e})
	}
	t.Broadcast()
	return after, nil
}

// check checks that no message is missing before or between events, except those
// that the hub never had. It returns the sequence number after the last one.
func (r *reader) check(ctx context.Context, events []*azeventhubs.ReceivedEventData, next int64) (int64, error) {
	asked := false
	for _, e := range events {
		switch {
		case next == oldest || e.SequenceNumber == next:
		case e.SequenceNumber < next:
			return next, fmt.Errorf("eventhubsbroker: %s@%d came again, before sequence number %d: the hub has lost its end, or was "+
				"recreated", r, e.SequenceNumber, next)
		case !asked: // what the hub has now, it had when it sent the first of these events
			asked = true
			has, err := r.session.partition(ctx, r.session.client, r.id)
			if err != nil {
				return next, err
			}
			if err := lostBefore(r.String(), has, next); err != nil {
				return next, err
			}
		}
		next = e.SequenceNumber + 1
	}
	return next, nil
}
