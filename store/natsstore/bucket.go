package natsstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bucket is the engine of a Store.
type bucket struct {
	js       jetstream.JetStream
	name     string
	replicas int
	invalid  error
	clock    cas.LearnedClock
	stream   atomic.Pointer[jetstream.Stream] // set by ask
	swept    atomic.Pointer[string]           // the last digits that sweep has looked at
	repeats  atomic.Int32                     // see countRepeat
}

// The kinds of subjects.
const (
	open  = "open" // Running, Unknown, Parked
	done  = "done" // the others
	every = "*"
)

func kindOf(row *cas.Row) string {
	if row.Open() {
		return open
	}
	return done
}

func (b *bucket) subject(rest string) string { return "$KV." + b.name + "." + rest }

// of returns the subject of a key.
func (b *bucket) of(kind, digits string) string {
	return b.subject(kind + "." + digits[:1] + "." + digits)
}

func digitsOf(id [16]byte) string { return hex.EncodeToString(id[:]) }

// Load returns the latest row of a key.
func (b *bucket) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	return b.load(ctx, k.UUID())
}

func (b *bucket) load(ctx context.Context, id [16]byte) (cas.Stored, error) {
	m, err := b.latest(ctx, b.of(every, digitsOf(id)))
	if m == nil || err != nil {
		return cas.Stored{}, err
	}
	row, err := readRow(m, id)
	return cas.Stored{Row: row, Version: strconv.FormatUint(m.Sequence, 10)}, err
}

// latest returns the latest message of a subject, or nil if there is none. The
// leader answers.
func (b *bucket) latest(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	if b.stream.Load() == nil {
		if err := b.ask(ctx); err != nil {
			return nil, err
		}
	}
	m, err := within(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return (*b.stream.Load()).GetLastMsgForSubject(ctx, subject)
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("natsstore: read %s: %w", subject, err)
	}
	return m, nil
}

// Put publishes a row if over is the sequence number of the latest message of
// its key.
func (b *bucket) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	if over == "" && b.readsFirst() { // a repeat then takes one round trip, and a new key two
		if is, err := b.Load(ctx, row.Key); err != nil || is.Version != "" {
			b.countRepeat(true)
			return is, cmp.Or(err, cas.ErrStale)
		}
	}
	m, err := b.message(ctx, row, over)
	if err != nil {
		return cas.Stored{}, err
	}
	giveUp := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		ack, err := within(ctx, func(ctx context.Context) (*jetstream.PubAck, error) { return b.js.PublishMsg(ctx, m) })
		if err == nil {
			if over == "" {
				b.countRepeat(false)
			} else if !row.Open() {
				b.remove(over)
			}
			return cas.Stored{Row: row, Version: strconv.FormatUint(ack.Sequence, 10)}, nil
		}
		if !hasCode(err, wrongSequence, writeInFlight) {
			return cas.Stored{}, explain(err)
		}
		is, err := b.Load(ctx, row.Key)
		if err != nil {
			return cas.Stored{}, err
		}
		if is.Version != over {
			if over == "" {
				b.countRepeat(true)
			}
			return is, cas.ErrStale
		}
		// The servers have a write of another caller that may still fail.
		if time.Now().After(giveUp) {
			return cas.Stored{}, fmt.Errorf("natsstore: for %v, a write of another caller was neither done nor refused", patience)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return cas.Stored{}, ctx.Err()
		}
	}
}

// countRepeat notes whether a claim met a record. With more than one repeat for
// two new keys, readsFirst becomes true.
func (b *bucket) countRepeat(repeat bool) {
	change := int32(-1)
	if repeat {
		change = 2
	}
	b.repeats.Store(min(max(0, b.repeats.Load()+change), 2*manyRepeats)) // roughly, which suffices
}

func (b *bucket) readsFirst() bool { return b.repeats.Load() >= manyRepeats }

const manyRepeats = 16

// message returns the message for a row.
func (b *bucket) message(ctx context.Context, row cas.Row, over string) (*nats.Msg, error) {
	digits := digitsOf(row.Key.UUID())
	m, err := newMessage(b.of(kindOf(&row), digits), row)
	if err != nil {
		return nil, err
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, cmp.Or(over, "0"))
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, b.of(every, digits))
	if at, expires := row.Expires(); expires {
		now, err := b.clock.Now(ctx)
		if err != nil {
			return nil, err
		}
		if left := now.AtMostUntil(at); left < forever {
			left = max(0, left) + reserve + time.Second
			m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(int64(left/time.Second), 10)+"s")
		}
	}
	return m, nil
}

const (
	// patience is how long a reply may take. A request is lost if the server that
	// has it stops.
	patience = 5 * time.Second

	// reserve is how much longer than its KeepKey a message is kept. Each replica
	// deletes messages by its own clock, and may be ahead of the leader by that much.
	reserve = 10 * time.Second

	// forever is how long a message is kept that is never deleted.
	forever = 200 * 365 * 24 * time.Hour
)

// remove asks the server to delete a message that is not the latest of its key.
// It does not wait for the reply: sweep deletes what is left.
func (b *bucket) remove(seq string) {
	_ = b.js.Conn().Publish(apiPrefix(b.js.Options())+"STREAM.MSG.DELETE."+b.streamName(), []byte(`{"seq":`+seq+`,"no_erase":true}`))
}

// apiPrefix returns the prefix of the subjects of requests, which the library
// does not export.
func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// within makes a request, whose reply may take as long as patience.
func within[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reply, err := request(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no reply within %v: %w", patience, nats.ErrTimeout)
	}
	return reply, err
}

// Codes of errors of the server.
const (
	wrongSequence  jetstream.ErrorCode = jetstream.JSErrCodeStreamWrongLastSequence
	writeInFlight  jetstream.ErrorCode = jetstream.JSErrCodeStreamWrongLastSequenceConstant
	tooLarge       jetstream.ErrorCode = 10054
	headerTooLarge jetstream.ErrorCode = 10097
)

func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	var is *jetstream.APIError
	return errors.As(err, &is) && slices.Contains(codes, is.ErrorCode)
}

// explain names the errors of the contract.
func explain(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) || hasCode(err, tooLarge, headerTooLarge) {
		return fmt.Errorf("%w: natsstore: %w", once.ErrOutcomeRefused, err)
	}
	return fmt.Errorf("natsstore: %w", err)
}
