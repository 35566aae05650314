package natsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
	"github.com/effectively-once/once/broker/natsbroker/internal/flow"
	"github.com/effectively-once/once/broker/natsbroker/internal/parcel"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Log returns the messages of a stream, of all its subjects or of some, in the order of the stream: for consumers that
// keep their own position. JetStream redelivers out of order, so this reads without acknowledging anything to the server:
// each session begins at the stream's first message, or where it is told to by Seek, and every session of the group gets
// everything. Of several processes, the one that moves the position is at work, and the others stand by.
func (b *Broker) Log(stream, group string, filters ...string) broker.Source {
	return &logSource{flow.Stream{JS: b.js, Name: stream, Filters: filters, Wait: lookUpTime}, group}
}

type logSource struct {
	stream flow.Stream
	group  string
}

var (
	_ broker.Placeless = (*logSource)(nil)
	_ broker.Horizon   = (*logSource)(nil)
	_ broker.Located   = (*logSource)(nil)
)

// Name tells consumers apart.
func (l *logSource) Name() string { return "nats stream " + l.stream.Name + " log of " + l.group }

// KeepsNoPlace says that the server does not know how far the group has come.
func (l *logSource) KeepsNoPlace() {}

// RedeliveryHorizon is the MaxAge of the stream.
func (l *logSource) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	info, err := l.stream.Look(ctx)
	if err != nil {
		return 0, l.explain(err)
	}
	return info.Config.MaxAge, nil
}

// Location returns when the stream was created.
func (l *logSource) Location(ctx context.Context) (map[string]string, error) {
	info, err := l.stream.Look(ctx)
	if err != nil {
		return nil, l.explain(err)
	}
	return location(info), nil
}

func (l *logSource) explain(err error) error { return fmt.Errorf("natsbroker: %s: %w", l.Name(), err) }

// Open begins to read at the first message.
func (l *logSource) Open(ctx context.Context, window int) (broker.Session, error) {
	counter, err := desk.New[logged](new(desk.Bell), window)
	if err != nil {
		return nil, err
	}
	info, err := l.stream.Look(ctx)
	if err != nil {
		return nil, l.explain(err)
	}
	r := &logReader{logSource: l, made: info.Created, desk: counter, lane: desk.NewLane[logged](0)}
	if err := r.begin(ctx, 0); err != nil {
		return nil, err
	}
	return r, nil
}

// logReader is a session of a Log.
type logReader struct {
	*logSource
	made time.Time // the stream

	desk *desk.Desk[logged] // guards what follows
	lane *desk.Lane[logged]
	flow *flow.Flow
}

// logged is a message of a stream.
type logged struct {
	msg  jetstream.Msg
	time time.Time
}

var (
	_ broker.Seeker  = (*logReader)(nil)
	_ broker.Delayer = (*logReader)(nil)
)

// log names the stream, and tells it from others of its name.
func (r *logReader) log() string { return r.stream.Name + "#" + r.made.UTC().Format(time.RFC3339Nano) }

// Receive waits for messages.
func (r *logReader) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return r.desk.Receive(ctx, limit, r)
}

// Lanes are one.
func (r *logReader) Lanes() []*desk.Lane[logged] { return []*desk.Lane[logged]{r.lane} }

// Deliver says that the message may have been delivered before, which is never known here: positions tell.
func (r *logReader) Deliver(_ *desk.Lane[logged], it *desk.Item[logged]) broker.Delivery {
	msg := it.Value.msg
	m := parcel.Unpack(&nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()}, it.Value.time)
	if it.Attempt > 1 { // else nobody knows how often sessions before have had it
		m.Attempt = it.Attempt
	}
	at := &broker.Position{Log: r.log(), Partition: r.stream.Name, Offset: it.Offset}
	origin := fmt.Sprintf("%s@%d", r.stream.Name, it.Offset)
	return broker.Delivery{Message: m, Redelivered: true, Position: at, Origin: origin}
}

// Await has nothing to do: messages arrive by themselves.
func (r *logReader) Await(ctx context.Context) { <-ctx.Done() }

// Ack makes room in the window. The server is not told anything.
func (r *logReader) Ack(ctx context.Context, ds []broker.Delivery) error {
	return r.desk.Settle(ctx, ds, (*desk.Item[logged]).Settle)
}

// Reject is Ack: the log keeps what it has.
func (r *logReader) Reject(ctx context.Context, ds []broker.Delivery, _ string) error {
	return r.Ack(ctx, ds)
}

// Return has messages come again.
func (r *logReader) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	due := time.Now().Add(min(after, r.LongestDelay()))
	return r.desk.Settle(ctx, ds, func(it *desk.Item[logged]) { it.Return(due) })
}

// LongestDelay is short: what is returned is kept in memory.
func (r *logReader) LongestDelay() time.Duration { return time.Minute }

// Seek reads on behind a place of the stream.
func (r *logReader) Seek(ctx context.Context, p broker.Position) error {
	if p.Partition != r.stream.Name || p.Log != r.log() {
		return fmt.Errorf("%w: %s has no place in the log %q, partition %q", broker.ErrInvalid, r.Name(), p.Log, p.Partition)
	}
	info, err := r.stream.Look(ctx)
	if err != nil {
		return r.explain(err)
	}
	from := uint64(max(p.Offset, 0)) + 1
	if first := info.State.FirstSeq; p.Offset >= 0 && from < first {
		return fmt.Errorf("natsbroker: %s: messages from %d on are wanted, and the stream begins at %d: its limits have "+
			"removed some that were not handled", r.Name(), from, first)
	}
	return r.begin(ctx, from)
}

// begin lets what comes begin at a sequence number.
func (r *logReader) begin(ctx context.Context, from uint64) error {
	next, err := r.stream.Read(ctx, r.made, from, r.desk.Window(), r)
	if err != nil {
		return r.explain(err)
	}
	r.desk.Lock()
	defer r.desk.Unlock()
	if r.desk.Closed() {
		next.End()
		return desk.ErrClosed
	}
	if r.flow != nil {
		r.flow.End()
	}
	r.flow = next
	r.lane.Rewind(int64(from), desk.ErrGone)
	r.desk.Ring()
	return nil
}

// Take puts a message into the lane when there is room.
func (r *logReader) Take(f *flow.Flow, m jetstream.Msg, meta *jetstream.MsgMetadata) {
	if r.desk.Until(f, func() bool { return r.flow == f && r.desk.Room(r.lane) > 0 }) != nil {
		return
	}
	r.desk.Lock()
	defer r.desk.Unlock()
	if r.flow == f {
		r.lane.Add(int64(meta.Sequence.Stream), logged{m, meta.Timestamp})
		r.desk.Ring()
	}
}

// Broken breaks the session.
func (r *logReader) Broken(f *flow.Flow, err error) {
	r.desk.Lock()
	defer r.desk.Unlock()
	if f.Err() == nil {
		r.desk.Fail(fmt.Errorf("natsbroker: %s: close the session and open another: %w", r.Name(), err))
	}
}

// Close ends the session.
func (r *logReader) Close(context.Context) error {
	r.desk.Lock()
	defer r.desk.Unlock()
	if !r.desk.Close() {
		r.flow.End()
	}
	return nil
}
