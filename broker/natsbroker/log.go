package natsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Log returns the messages of a stream in order, for consumers that keep their
// own position. With filters, it returns the messages of these subjects only. It
// acknowledges nothing to the server, because JetStream redelivers out of order.
// Each session starts at the first message of the stream, or where Seek tells
// it to, and gets all messages. Of several processes of a group, the one that
// moves the position works, and the others wait.
func (b *Broker) Log(stream, group string, filters ...string) broker.Source {
	return &logSource{streamRef{js: b.js, name: stream, filters: filters, wait: lookUpTime}, group}
}

type logSource struct {
	stream streamRef
	group  string
}

var (
	_ broker.Placeless = (*logSource)(nil)
	_ broker.Horizon   = (*logSource)(nil)
	_ broker.Located   = (*logSource)(nil)
	_ broker.LogLagger = (*logSource)(nil)
)

// Name returns the names of the stream and the group.
func (l *logSource) Name() string { return "nats stream " + l.stream.name + " log of " + l.group }

// KeepsNoPlace marks the source as [broker.Placeless].
func (l *logSource) KeepsNoPlace() {}

// RedeliveryHorizon returns the MaxAge of the stream.
func (l *logSource) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	info, err := l.stream.info(ctx)
	if err != nil {
		return 0, l.explain(err)
	}
	return info.Config.MaxAge, nil
}

// Location returns when the stream was created.
func (l *logSource) Location(ctx context.Context) (map[string]string, error) {
	info, err := l.stream.info(ctx)
	if err != nil {
		return nil, l.explain(err)
	}
	return location(info), nil
}

// LagFrom returns the number of messages after a position, and the age of the first
// of them. Those that do not match the filters of the source do not count. If it
// has filters, or if messages were deleted from the middle of the stream, the
// server counts, with a consumer that is deleted again: the user needs the right
// to create one, as to open a session.
func (l *logSource) LagFrom(ctx context.Context, at map[string]broker.Position) (lag broker.Lag, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.stream.wait)
	defer cancel()
	stream, err := l.stream.js.Stream(ctx, l.stream.name)
	if err != nil {
		return lag, l.explain(err)
	}
	info := stream.CachedInfo()
	from := info.State.FirstSeq
	if p, ok := at[l.stream.name]; ok {
		if log := logName(info); p.Log != log {
			return lag, fmt.Errorf("%w: %s: the position is one of %q, and the stream, which was recreated, is %q now",
				broker.ErrInvalid, l.Name(), p.Log, log)
		}
		if p.Offset > int64(info.State.LastSeq) {
			return lag, fmt.Errorf("%w: %s ends at sequence %d, and the position is %d: the stream has lost its end, and messages with "+
				"these sequences would be taken for handled", broker.ErrInvalid, l.Name(), info.State.LastSeq, p.Offset)
		}
		from = max(from, uint64(max(p.Offset, 0))+1)
	}
	n, err := l.stream.count(ctx, stream, from)
	if err != nil {
		return lag, l.explain(err)
	}
	if n == 0 {
		return lag, nil
	}
	first, err := l.stream.firstTime(ctx, stream, from)
	if err != nil {
		return lag, l.explain(err)
	}
	lag.Messages = n
	if !first.IsZero() {
		lag.Oldest = max(time.Since(first), 0)
	}
	return lag, nil
}

func (l *logSource) explain(err error) error { return fmt.Errorf("natsbroker: %s: %w", l.Name(), err) }

// Open starts to read at the first message.
func (l *logSource) Open(ctx context.Context, window int) (broker.Session, error) {
	tracker, err := inflight.NewTracker[logged](new(inflight.Cond), window)
	if err != nil {
		return nil, err
	}
	info, err := l.stream.info(ctx)
	if err != nil {
		return nil, l.explain(err)
	}
	if kept := info.Config.Retention; kept != jetstream.LimitsPolicy {
		return nil, fmt.Errorf("%w: %s: the stream has the retention %s, so a message is gone once the consumers of the server have "+
			"acknowledged it, and a log is none of them: use Consumer, or a stream with the retention limits", broker.ErrInvalid, l.Name(), kept)
	}
	r := &logReader{logSource: l, created: info.Created, tracker: tracker, buffer: inflight.NewBuffer[logged](0)}
	if err := r.begin(ctx, 0); err != nil {
		return nil, err
	}
	return r, nil
}

// logReader is a session of a Log.
type logReader struct {
	*logSource
	created time.Time // when the stream was created

	tracker *inflight.Tracker[logged] // guards the fields below
	buffer  *inflight.Buffer[logged]
	reader  *streamReader
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

// log returns a name of the stream that changes if it is recreated.
func (r *logReader) log() string { return createdName(r.stream.name, r.created) }

// logName returns the name of the log of a stream.
func logName(stream *jetstream.StreamInfo) string {
	return createdName(stream.Config.Name, stream.Created)
}

func createdName(stream string, created time.Time) string {
	return stream + "#" + created.UTC().Format(time.RFC3339Nano)
}

// Receive waits for messages.
func (r *logReader) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return r.tracker.Receive(ctx, limit, r)
}

// Buffers returns the only buffer.
func (r *logReader) Buffers() []*inflight.Buffer[logged] { return []*inflight.Buffer[logged]{r.buffer} }

// NewDelivery marks every message as redelivered, because the server does not
// know. Consumers compare positions.
func (r *logReader) NewDelivery(_ *inflight.Buffer[logged], it *inflight.Item[logged]) broker.Delivery {
	msg := it.Value.msg
	m := decode(&nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()}, it.Value.time)
	if it.Attempt > 1 { // otherwise the attempts of earlier sessions are unknown
		m.Attempt = it.Attempt
	}
	at := &broker.Position{Log: r.log(), Partition: r.stream.name, Offset: it.Offset}
	origin := fmt.Sprintf("%s@%d", r.stream.name, it.Offset)
	return broker.Delivery{Message: m, Redelivered: true, Position: at, Origin: origin}
}

// Fetch waits, because take adds the messages.
func (r *logReader) Fetch(ctx context.Context) { <-ctx.Done() }

// Ack makes room in the window. It tells the server nothing.
func (r *logReader) Ack(ctx context.Context, ds []broker.Delivery) error {
	return r.tracker.Settle(ctx, ds, (*inflight.Item[logged]).Settle)
}

// Reject acknowledges messages. The stream keeps them.
func (r *logReader) Reject(ctx context.Context, ds []broker.Delivery, _ string) error {
	return r.Ack(ctx, ds)
}

// Return lets messages be delivered again.
func (r *logReader) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	due := time.Now().Add(min(after, r.LongestDelay()))
	return r.tracker.Settle(ctx, ds, func(it *inflight.Item[logged]) { it.Return(due) })
}

// LongestDelay is short, because returned messages are kept in memory.
func (r *logReader) LongestDelay() time.Duration { return time.Minute }

// Seek continues after a position in the stream.
func (r *logReader) Seek(ctx context.Context, p broker.Position) error {
	if p.Partition != r.stream.name || p.Log != r.log() {
		return fmt.Errorf("%w: %s has no position in the log %q, partition %q", broker.ErrInvalid, r.Name(), p.Log, p.Partition)
	}
	info, err := r.stream.info(ctx)
	if err != nil {
		return r.explain(err)
	}
	from := uint64(max(p.Offset, 0)) + 1
	if first := info.State.FirstSeq; p.Offset >= 0 && from < first {
		return fmt.Errorf("natsbroker: %s: the session needs messages from %d on, and the stream starts at %d: its limits have "+
			"removed some that were not handled", r.Name(), from, first)
	}
	return r.begin(ctx, from)
}

// begin starts to read at a sequence.
func (r *logReader) begin(ctx context.Context, from uint64) error {
	next, err := r.stream.read(ctx, r.created, from, r.tracker.Window(), r)
	if err != nil {
		return r.explain(err)
	}
	r.tracker.Lock()
	defer r.tracker.Unlock()
	if r.tracker.Closed() {
		next.end()
		return inflight.ErrClosed
	}
	if r.reader != nil {
		r.reader.end()
	}
	r.reader = next
	r.buffer.Reset(int64(from), inflight.ErrLost)
	r.tracker.Broadcast()
	return nil
}

// take adds a message to the buffer when there is room.
func (r *logReader) take(from *streamReader, m jetstream.Msg, meta *jetstream.MsgMetadata) {
	if r.tracker.WaitUntil(from, func() bool { return r.reader == from && r.tracker.Room(r.buffer) > 0 }) != nil {
		return
	}
	r.tracker.Lock()
	defer r.tracker.Unlock()
	if r.reader == from {
		r.buffer.Add(int64(meta.Sequence.Stream), logged{m, meta.Timestamp})
		r.tracker.Broadcast()
	}
}

// broken fails the session.
func (r *logReader) broken(from *streamReader, err error) {
	r.tracker.Lock()
	defer r.tracker.Unlock()
	if from.Err() == nil {
		r.tracker.Fail(fmt.Errorf("natsbroker: %s: close the session and open another: %w", r.Name(), err))
	}
}

// Close ends the session.
func (r *logReader) Close(context.Context) error {
	r.tracker.Lock()
	defer r.tracker.Unlock()
	if !r.tracker.Close() {
		r.reader.end()
	}
	return nil
}
