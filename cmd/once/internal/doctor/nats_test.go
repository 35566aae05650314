package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store"
)

// startNATS starts a server, with a user who may do everything, ops, and one who may not ask JetStream, guest.
func startNATS(t *testing.T) (*server.Server, jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Users: []*server.User{{Username: "ops", Password: "s3cret"}, {Username: "guest", Password: "s3cret",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.>"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	c, err := nats.Connect(s.ClientURL(), nats.UserInfo("ops", "s3cret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, js
}

func natsURL(s *server.Server, user string) string {
	return "nats://" + user + ":s3cret@" + s.Addr().String()
}

// examine is what a broker's examination finds.
func examine(t *testing.T, url string, at *target.Target, only string) doctor.Report {
	t.Helper()
	b, err := doctor.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := doctor.ExamineBroker(t.Context(), b, at, only)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// want compares the names of findings, and what is said of the one that is named in front.
func want(t *testing.T, r doctor.Report, what string, names ...string) {
	t.Helper()
	var got []string
	said := false
	for _, f := range r.Findings {
		got = append(got, f.Name)
		said = said || what == "" || strings.Contains(string(f.Severity)+" "+f.Name+": "+f.What, what)
	}
	slices.Sort(got)
	slices.Sort(names)
	if !slices.Equal(got, names) || !said && len(names) > 0 {
		t.Errorf("found %v, want %v, and %q:\n%+v", got, names, what, r.Findings)
	}
}

func stream(t *testing.T, js jetstream.JetStream, c jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	if c.Subjects == nil && c.Sources == nil && c.Mirror == nil {
		c.Subjects = []string{c.Name + ".>"}
	}
	s, err := js.CreateStream(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, js jetstream.JetStream, subject string, n int) {
	t.Helper()
	for i := range n {
		if _, err := js.Publish(t.Context(), subject, nil, jetstream.WithMsgID(fmt.Sprint(subject, i))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNATSStreams(t *testing.T) {
	s, js := startNATS(t)
	stream(t, js, jetstream.StreamConfig{Name: "good", MaxAge: time.Hour})
	for _, test := range []struct {
		jetstream.StreamConfig
		what, finding string
	}{
		{jetstream.StreamConfig{Name: "memory", Storage: jetstream.MemoryStorage}, "unsafe nats-memory: Stream memory is kept in memory.", "nats-memory"},
		{jetstream.StreamConfig{Name: "msgs", MaxMsgs: 5}, "warning nats-discards-old: Stream msgs drops its oldest messages at 5 messages.", "nats-discards-old"},
		{jetstream.StreamConfig{Name: "bytes", MaxBytes: 1 << 20}, "at 1.0 MiB.", "nats-discards-old"},
		{jetstream.StreamConfig{Name: "bysubject", MaxMsgsPerSubject: 1}, "at 1 messages per subject.", "nats-discards-old"},
		{jetstream.StreamConfig{Name: "new", MaxMsgs: 5, Discard: jetstream.DiscardNew}, "", ""},
		{jetstream.StreamConfig{Name: "noack", NoAck: true}, "unsafe nats-no-ack: ", "nats-no-ack"},
		{jetstream.StreamConfig{Name: "short", Duplicates: time.Minute}, "drops duplicates for only 60 s.", "nats-duplicate-window"},
		{jetstream.StreamConfig{Name: "mirror", Mirror: &jetstream.StreamSource{Name: "good"}}, "note nats-copies-apart: ", "nats-copies-apart"},
		{jetstream.StreamConfig{Name: "joined", Sources: []*jetstream.StreamSource{{Name: "good"}, {Name: "new"}}},
			"warning nats-copies-apart: Stream joined collects the messages of good, new, and drops no duplicates.", "nats-copies-apart"},
		{jetstream.StreamConfig{Name: "windowed", Sources: []*jetstream.StreamSource{{Name: "good"}}, Duplicates: 2 * time.Minute},
			"warning nats-copies-apart: Stream windowed collects the messages of good, and drops duplicates for 2 m.", "nats-copies-apart"},
		{jetstream.StreamConfig{Name: "again", RePublish: &jetstream.RePublish{Source: ">", Destination: "copy.>"}}, "note nats-copies-apart: ", "nats-copies-apart"},
	} {
		stream(t, js, test.StreamConfig)
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, natsURL(s, "ops"), nil, test.Name), test.what, names...)
	}
	want(t, examine(t, natsURL(s, "ops"), nil, "good"), "")
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "bucket", Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	r := examine(t, natsURL(s, "ops"), nil, "")
	want(t, r, "bysubject drops its oldest messages at 1 messages per subject. Stream bytes drops", "nats-copies-apart", "nats-copies-apart",
		"nats-copies-apart", "nats-copies-apart", "nats-discards-old", "nats-duplicate-window", "nats-memory", "nats-no-ack")
	for _, f := range r.Findings {
		if strings.Contains(f.What, "KV_bucket") || strings.ContainsRune(f.What, 0) {
			t.Errorf("found %q", f.What)
		}
	}
}

// The finding nats-copies-apart is right about joined streams: messages with
// equal IDs from two places are kept both, or only one with a window.
func TestNATSJoinedStreamsAndEqualIDs(t *testing.T) {
	_, js := startNATS(t)
	ctx := t.Context()
	from := []*jetstream.StreamSource{{Name: "a"}, {Name: "b"}}
	stream(t, js, jetstream.StreamConfig{Name: "a"})
	stream(t, js, jetstream.StreamConfig{Name: "b"})
	for _, joined := range []struct {
		jetstream.Stream
		want int
	}{
		{stream(t, js, jetstream.StreamConfig{Name: "joined", Sources: from}), 2},
		{stream(t, js, jetstream.StreamConfig{Name: "windowed", Sources: from, Duplicates: time.Minute * 2}), 1},
	} {
		name := joined.CachedInfo().Config.Name
		for _, subject := range []string{"a.x", "b.x"} {
			for _, id := range []string{"same of " + name, subject + " of " + name} {
				if _, err := js.Publish(ctx, subject, nil, jetstream.WithMsgID(id)); err != nil {
					t.Fatal(err)
				}
			}
		}
		c, err := joined.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		if err != nil {
			t.Fatal(err)
		}
		got, same := map[string]bool{}, 0
		for !got["a.x of "+name] || !got["b.x of "+name] { // the last of each place
			m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if id := m.Headers().Get(nats.MsgIdHdr); id == "same of "+name {
				same++
			} else {
				got[id] = true
			}
		}
		if same != joined.want {
			t.Errorf("%d messages of one ID are in %s, and %d is what is told", same, name, joined.want)
		}
	}
}

func TestNATSConsumers(t *testing.T) {
	s, js := startNATS(t)
	ctx := t.Context()
	for _, test := range []struct {
		name string
		jetstream.ConsumerConfig
		pull          int
		what, finding string
	}{
		{name: "good", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1}, pull: 1},
		{name: "none", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}, pull: 3, what: "unsafe", finding: "nats-consumer-loses"},
		{name: "all", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, pull: 1, what: "one acknowledgement for all", finding: "nats-consumer-loses"},
		{name: "few", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3}, pull: 1,
			what: "silently gives up a message after 3 deliveries", finding: "nats-consumer-loses"},
		{name: "idle", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, InactiveThreshold: time.Hour}, pull: 1,
			what: "is deleted", finding: "nats-consumer-loses"},
		{name: "bodiless", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, HeadersOnly: true}, pull: 1,
			what: "delivers no bodies", finding: "nats-consumer-refused"},
		{name: "hasty", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, AckWait: 900 * time.Millisecond}, pull: 1,
			what: "an AckWait of 900 ms", finding: "nats-ack-wait"},
		{name: "full", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 2}, pull: 2,
			what: "has 2 unacknowledged messages, which is its limit", finding: "nats-ack-pending-full"},
		{name: "alone", ConsumerConfig: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy},
			what: "has 3 messages waiting, and no client pulls", finding: "nats-nobody-pulls"},
	} {
		at := stream(t, js, jetstream.StreamConfig{Name: test.name})
		publish(t, js, test.name+".x", 3)
		test.Durable = "c"
		c, err := at.CreateConsumer(ctx, test.ConsumerConfig)
		if err != nil {
			t.Fatal(err)
		}
		for range test.pull {
			if _, err := c.Next(jetstream.FetchMaxWait(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, natsURL(s, "ops"), nil, test.name), test.what, names...)
	}
	// Redelivered: given back, and taken again.
	at := stream(t, js, jetstream.StreamConfig{Name: "again"})
	publish(t, js, "again.x", 10)
	c, err := at.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	var all []jetstream.Msg
	for i := range 20 {
		m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, m); i == 9 {
			for _, m := range all {
				if err := m.Nak(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want(t, examine(t, natsURL(s, "ops"), nil, "again"), "has 10 unacknowledged messages that were delivered before", "nats-redelivers")
}

// What a limit drops before a consumer has had it is told; what it has had is not.
func TestNATSUnread(t *testing.T) {
	s, js := startNATS(t)
	ctx := t.Context()
	at := stream(t, js, jetstream.StreamConfig{Name: "s"})
	c, err := at.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, "s.x", 6)
	for range 2 {
		m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.DoubleAck(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; { // the server may still count the last request as waiting
		info, err := c.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if info.NumWaiting == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests are waiting", info.NumWaiting)
		}
	}
	limit := func(n int64) doctor.Report {
		t.Helper()
		if _, err := js.UpdateStream(ctx, jetstream.StreamConfig{Name: "s", Subjects: []string{"s.>"}, MaxMsgs: n}); err != nil {
			t.Fatal(err)
		}
		return examine(t, natsURL(s, "ops"), nil, "")
	}
	want(t, limit(4), "", "nats-discards-old", "nats-nobody-pulls")
	want(t, limit(3), "unsafe nats-unread-dropped: Consumer c of stream s has received messages up to 2, and the stream begins at 4.",
		"nats-discards-old", "nats-nobody-pulls", "nats-unread-dropped")
}

// register makes the store know a consumer, with a key that is kept for a time.
func register(t *testing.T, at *target.Target, name, source string, keep time.Duration) {
	t.Helper()
	ctx := t.Context()
	if _, err := need[store.Registry](at).Register(ctx, store.Consumer{Name: name, Source: source}); err != nil {
		t.Fatal(err)
	}
	if keep == 0 {
		return
	}
	fence := once.Fence{Key: once.Key{Operation: name, ID: "1"}, Owner: [16]byte{1}, Attempt: 1}
	if _, err := at.Store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := at.Store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: keep, KeepKey: keep}); err != nil {
		t.Fatal(err)
	}
}

func TestNATSRetentionAgainstKeys(t *testing.T) {
	s, js := startNATS(t)
	stream(t, js, jetstream.StreamConfig{Name: "other", Storage: jetstream.MemoryStorage}) // which no consumer of the store reads
	declare := func(name string, age time.Duration) {
		t.Helper()
		stream(t, js, jetstream.StreamConfig{Name: name, MaxAge: age})
		if err := natsbroker.New(js, nil).DeclareConsumer(t.Context(), name, "c"); err != nil {
			t.Fatal(err)
		}
	}
	declare("short", 24*time.Hour)
	declare("equal", 48*time.Hour)
	declare("long", 72*time.Hour)
	declare("ever", 0)
	const keep = 48 * time.Hour
	for _, test := range []struct{ of, what, finding string }{
		{"short", "", ""},
		{"equal", "", ""},
		{"long", "warning redelivery-outlives-keys: billing (nats stream long consumer c): messages can be delivered for 3 d, " +
			"and keys are kept for 2 d (1 key was checked).", "redelivery-outlives-keys"},
		{"ever", "messages can be delivered for ever", "redelivery-outlives-keys"},
		{"gone", "there is no such stream", "source-missing"},
	} {
		at := fresh(t)
		register(t, at, "billing", "nats stream "+test.of+" consumer c", keep)
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, natsURL(s, "ops"), at, ""), test.what, names...)
	}
	at := fresh(t)
	register(t, at, "billing", "nats stream long consumer other", 0)
	register(t, at, "reports", "nats stream long log of reports", 0)
	register(t, at, "elsewhere", "rabbitmq queue long", keep)
	want(t, examine(t, natsURL(s, "ops"), at, ""), "billing (nats stream long consumer other): there is no such consumer of the stream", "source-missing")
	want(t, examine(t, natsURL(s, "ops"), at, "other"), "", "nats-memory")
}

func TestNATSAccountThatIsNearlyFull(t *testing.T) {
	s, js := startNATS(t)
	stream(t, js, jetstream.StreamConfig{Name: "s"})
	const most = 64 << 10
	limits := server.JetStreamAccountLimits{MaxStore: most, MaxMemory: -1, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1}
	if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		bytes    int
		findings []string
	}{{most / 2, nil}, {most * 9 / 20, []string{"nats-account-full"}}} {
		if _, err := js.Publish(t.Context(), "s.x", make([]byte, test.bytes)); err != nil {
			t.Fatal(err)
		}
		want(t, examine(t, natsURL(s, "ops"), nil, ""), "of its limit of 64.0 KiB of disk.", test.findings...)
	}
}

func TestNATSWithoutRights(t *testing.T) {
	s, _ := startNATS(t)
	r := examine(t, natsURL(s, "guest"), nil, "")
	if r.Unmade() != 1 || len(r.Checks) != 1 || !strings.Contains(strings.ToLower(r.Findings[0].What), "permissions violation") || !strings.Contains(r.Findings[0].What, "nats-account: ") ||
		!strings.Contains(r.Findings[0].What, "nats-streams: ") || strings.Contains(fmt.Sprint(r), "s3cret") {
		t.Errorf("found %+v", r)
	}
}

func TestBrokersThatCannotBeAsked(t *testing.T) {
	s, _ := startNATS(t)
	for _, test := range []struct{ url, want string }{
		{"nats://ops:wr0ng@" + s.Addr().String(), ": nats: Authorization Violation"},
		{"nats://ops:wr0ng@127.0.0.1:1", "cannot connect to nats://127.0.0.1:1: "},
		{"nats://ops:wr0ng@127.0.0.1:1?x=wr0ng", `there is no parameter "x"`},
		{"nats://ops:${ONCE_NOT_SET}@127.0.0.1:1", "the variable ONCE_NOT_SET is not set"},
		{"nats://ops:wr0ng%@127.0.0.1:1", "write special characters as %XX"},
		{"nats://ops:wr0ng/x@127.0.0.1:1", "there is an @ after a /"},
		{"nats://ops:wr0ng@", "a host is missing"},
		{"smtp://ops:wr0ng@127.0.0.1:1", "it must begin with"},
	} {
		b, err := doctor.Dial(t.Context(), test.url)
		if err == nil {
			b.Close()
			t.Errorf("%s is connected", test.url)
		} else if text := err.Error(); !strings.Contains(text, test.want) || strings.Contains(text, "wr0ng") {
			t.Errorf("%s: %v, want %q", test.url, err, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := doctor.Dial(t.Context(), natsURL(s, "ops"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := doctor.ExamineBroker(ctx, b, nil, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := doctor.ExamineBroker(t.Context(), b, nil, "["); !errors.Is(err, doctor.ErrBroker) {
		t.Errorf("a pattern that is none: %v", err)
	}
}
