package natsstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/cas"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func TestOnlyStreamsThatKeepKeysAreAccepted(t *testing.T) {
	fit := New(nil, nil).Schema()
	if fault := faultOf(fit); fault != "" {
		t.Errorf("the stream of Migrate %s", fault)
	}
	for want, change := range map[string]func(*jetstream.StreamConfig){
		"retention":                 func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"max_age":                   func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"max_msgs ":                 func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 },
		"max_bytes":                 func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 30 },
		"max_msgs_per_subject":      func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 64 },
		"memory":                    func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"persist_mode":              func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"no_ack":                    func(c *jetstream.StreamConfig) { c.NoAck = true },
		"allow_direct":              func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"allow_msg_ttl":             func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false },
		"subject_delete_marker_ttl": func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Hour },
		"deny_delete":               func(c *jetstream.StreamConfig) { c.DenyDelete = true },
		"sealed":                    func(c *jetstream.StreamConfig) { c.Sealed = true },
		"mirror":                    func(c *jetstream.StreamConfig) { c.Mirror = &jetstream.StreamSource{Name: "other"} },
		"sources":                   func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "other"}} },
		"subject_transform":         func(c *jetstream.StreamConfig) { c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: ">"} },
	} {
		unfit := fit
		change(&unfit)
		if fault := faultOf(unfit); !strings.Contains(fault+" ", want) {
			t.Errorf("%s: %q", want, fault)
		}
	}
}

func TestAHeaderHasAllOfARow(t *testing.T) {
	row := cas.Row{
		Key: once.Key{Scope: "größe", Operation: "pay", ID: "1"}, Status: once.Done, Attempt: 2,
		Owner: [16]byte{1, 255}, Cause: [16]byte{2}, Fingerprint: []byte{0, 1}, Reason: "line\nline",
		Created: 1, Updated: 2_000_000, Lease: 3, KeepOutcome: 4, KeepKey: 5, Firm: true,
	}
	m, err := newMessage("s", row)
	if err != nil {
		t.Fatal(err)
	}
	raw := &jetstream.RawStreamMsg{Header: m.Header, Data: m.Data}
	got, err := readRow(raw, row.Key.UUID())
	if err != nil {
		t.Fatal(err)
	}
	again, err := newMessage("s", got)
	if err != nil || again.Header.Get(recordHeader) != m.Header.Get(recordHeader) {
		t.Errorf("%s became %v, %v", m.Header.Get(recordHeader), again, err)
	}
	if strings.Contains(m.Header.Get(recordHeader), "\n") {
		t.Error("a header has a line break")
	}
}

// A message is kept for ten seconds more, for replicas whose clocks are ahead.
func TestMessagesAreKeptAsLongAsTheirKeys(t *testing.T) {
	b := New(nil, nil).bucket
	now := time.Now()
	b.clock.Learn(now, now, 1)
	for _, c := range []struct {
		status once.Status
		keep   time.Duration
		want   string
	}{
		{once.Done, time.Minute, "71s"},
		{once.Absent, time.Hour, "3611s"},
		{once.Done, -time.Hour, "11s"},
		{once.Done, 290 * 365 * 24 * time.Hour, ""},
		{once.Running, time.Minute, ""},
		{once.Unknown, time.Minute, ""},
		{once.Parked, time.Minute, ""},
	} {
		row := cas.Row{Key: once.Key{Operation: "pay", ID: "1"}, Status: c.status, Attempt: 1,
			KeepKey: cas.Instant(now.Add(c.keep + time.Second/2).UnixMicro())}
		m, err := b.message(t.Context(), row, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get(jetstream.MsgTTLHeader); got != c.want {
			t.Errorf("a row that is %v and kept for %v has a message kept for %q, not %q", c.status, c.keep, got, c.want)
		}
	}
}

// busy is a JetStream with a write of another caller in flight, which fails
// after some refusals.
type busy struct {
	jetstream.JetStream
	refusals int
}

// empty is a stream without messages.
type empty struct{ jetstream.Stream }

func (b *busy) PublishMsg(context.Context, *nats.Msg, ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if b.refusals > 0 {
		b.refusals--
		return nil, &jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant}
	}
	return &jetstream.PubAck{Sequence: 1}, nil
}

func (empty) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	return nil, jetstream.ErrMsgNotFound
}

func TestAWriteInFlightIsWaitedFor(t *testing.T) {
	js := &busy{refusals: 40}
	s := New(js, nil)
	var stream jetstream.Stream = empty{}
	s.bucket.stream.Store(&stream)
	now := time.Now()
	s.bucket.clock.Learn(now, now, 1)
	owner := [16]byte{1}
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: owner}, Lease: time.Hour})
	if err != nil || !rec.HeldBy(owner) {
		t.Errorf("Claim returned %+v, %v", rec, err)
	}
}
