// Package natsstore tests the store in NATS, on one server and on three.
package natsstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func dial(t testing.TB, urls string) jetstream.JetStream {
	t.Helper()
	js, err := offices.DialNATS(urls)
	proof.Must(t, err)
	t.Cleanup(js.Conn().Close)
	return js
}

// migrated returns a store whose bucket exists.
func migrated(t testing.TB, js jetstream.JetStream, o *natsstore.Options) *natsstore.Store {
	t.Helper()
	s := natsstore.New(js, o)
	var err error
	proof.Await(t, "the bucket is there", func() bool {
		err = s.Migrate(t.Context())
		return err == nil || t.Context().Err() != nil
	})
	proof.Must(t, err)
	return s
}

func TestConformance(t *testing.T) {
	server := offices.StartNATS(t)
	storetest.Run(t, storetest.Harness{
		Open:       func(t testing.TB) once.Store { return migrated(t, dial(t, server.URL()), nil) },
		ListsOpen:  true,
		Expires:    true,
		LearnsTime: true,
		Damages:    damages(dial(t, server.URL())),
	})
}

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

func paid(context.Context, once.Key) (string, error) { return "paid", nil }

// messagesOf returns the latest message of each key, by subject.
func messagesOf(t *testing.T, js jetstream.JetStream) map[string]*jetstream.RawStreamMsg {
	t.Helper()
	stream, err := js.Stream(t.Context(), "KV_once")
	proof.Must(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	proof.Must(t, err)
	all := make(map[string]*jetstream.RawStreamMsg)
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // the server has deleted it since: a released key, say
		}
		proof.Must(t, err)
		all[subject] = m
	}
	return all
}

// Nobody has to call Forget.
func TestTheServerFreesTheSpaceOfKeys(t *testing.T) {
	js := dial(t, offices.StartNATS(t).URL())
	s := migrated(t, js, nil)
	short := *pay
	short.Policy = once.Policy{KeepOutcome: time.Millisecond, KeepKey: 2 * time.Millisecond}
	for i := range 20 {
		_, err := once.Do(t.Context(), s, short.For(fmt.Sprint(i)), paid)
		proof.Must(t, err)
	}
	proof.Await(t, "the messages are deleted", func() bool {
		stream, err := js.Stream(t.Context(), "KV_once")
		proof.Must(t, err)
		return stream.CachedInfo().State.Msgs == 0
	})
	got, err := once.Do(t.Context(), s, short.For("1"), paid)
	if err != nil || got != "paid" {
		t.Errorf("Do with a forgotten key returned %q, %v", got, err)
	}
}

// A key that is not done must outlive anything.
func TestOpenKeysNeverExpire(t *testing.T) {
	js := dial(t, offices.StartNATS(t).URL())
	s := migrated(t, js, nil)
	for _, status := range []once.Status{once.Running, once.Unknown, once.Parked} {
		key := once.Key{Operation: "pay", ID: status.String()}
		for attempt := range 2 { // the second time after a release, which expires
			fence := once.Fence{Key: key, Owner: [16]byte{byte(attempt + 1)}}
			rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
			proof.Must(t, err)
			fence.Attempt = rec.Attempt
			set := once.Settlement{Fence: fence, KeepKey: time.Hour, Status: status}
			if attempt == 0 {
				set.Status = once.Absent
			}
			if set.Status != once.Running {
				proof.Must(t, s.Settle(t.Context(), set))
			}
		}
	}
	n := 0
	for subject, m := range messagesOf(t, js) {
		ttl := m.Header.Get(jetstream.MsgTTLHeader)
		if strings.Contains(subject, ".open.") {
			if n++; ttl != "" {
				t.Errorf("%s is deleted after %s", subject, ttl)
			}
		}
	}
	if n != 3 {
		t.Errorf("%d keys are open", n)
	}
}

func TestDamagedRecords(t *testing.T) {
	js := dial(t, offices.StartNATS(t).URL())
	s := migrated(t, js, nil)
	for name, damage := range map[string]func(*nats.Msg){
		"deleted by another tool":  func(m *nats.Msg) { m.Header = nats.Header{"Kv-Operation": {"DEL"}} },
		"no number":                replace(`"attempt":1`, `"attempt":"one"`),
		"no attempt":               replace(`"attempt":1`, `"attempt":0`),
		"no status":                replace(`"status":"done"`, `"status":"doing"`),
		"no owner":                 replace(`"owner":"`, `"owner":"ff`),
		"the parts of another key": replace(`"id":"`, `"id":"other`),
		"another outcome":          func(m *nats.Msg) { m.Data = []byte(`"paid twice"`) },
	} {
		t.Run(name, func(t *testing.T) {
			work := pay.For(name)
			_, err := once.Do(t.Context(), s, work, paid)
			proof.Must(t, err)
			record := &jetstream.RawStreamMsg{}
			for _, m := range messagesOf(t, js) { // the server may still have that of the claim
				if strings.Contains(m.Header.Get("Once-Record"), `"id":"`+name+`"`) && m.Sequence > record.Sequence {
					record = m
				}
			}
			damaged := &nats.Msg{Subject: record.Subject, Header: nats.Header{"Once-Record": record.Header["Once-Record"]}, Data: record.Data}
			damage(damaged)
			_, err = js.PublishMsg(t.Context(), damaged)
			proof.Must(t, err)
			got, err := once.Do(t.Context(), s, work, paid)
			if !errors.Is(err, once.ErrCorrupt) || got != "" {
				t.Errorf("Do returned %q, %v", got, err)
			}
		})
	}
}

func replace(old, by string) func(*nats.Msg) {
	return func(m *nats.Msg) {
		m.Header.Set("Once-Record", strings.Replace(m.Header.Get("Once-Record"), old, by, 1))
	}
}

func TestBucketsSeparateStores(t *testing.T) {
	js := dial(t, offices.StartNATS(t).URL())
	a, b := migrated(t, js, &natsstore.Options{Bucket: "a"}), migrated(t, js, &natsstore.Options{Bucket: "b"})
	for _, s := range []*natsstore.Store{a, b} {
		ran := false
		_, err := once.Do(t.Context(), s, pay.For("1"), func(context.Context, once.Key) (string, error) { ran = true; return "paid", nil })
		if err != nil || !ran {
			t.Errorf("Do ran its work: %v, %v", ran, err)
		}
	}
}

func TestInvalidStores(t *testing.T) {
	js := dial(t, offices.StartNATS(t).URL())
	unfit := natsstore.New(js, &natsstore.Options{Bucket: "kv"})
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "kv"})
	proof.Must(t, err)
	for name, s := range map[string]*natsstore.Store{
		"no JetStream":               natsstore.New(nil, nil),
		"a name with a dot":          natsstore.New(js, &natsstore.Options{Bucket: "a.b"}),
		"a bucket of another's make": unfit,
	} {
		if _, err := s.Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Get returned %v", name, err)
		}
		if err := s.Migrate(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Migrate returned %v", name, err)
		}
	}
	if _, err := natsstore.New(js, nil).Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream, Get returned %v", err)
	}
}

// The server takes no message that is larger than its max_payload.
func TestAnOutcomeThatIsTooLargeIsRecordedWithoutItsBody(t *testing.T) {
	s := natsstore.New(dial(t, offices.StartNATS(t).URL()), &natsstore.Options{Options: once.Options{MaxOutcome: 32 << 20}})
	proof.Must(t, s.Migrate(t.Context()))
	work := pay.For("1")
	large := strings.Repeat("x", 9<<20)
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: pay.For("refused").Key(), Owner: [16]byte{1}}, Lease: time.Hour})
	proof.Must(t, err)
	err = s.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done,
		Outcome: once.Outcome{Body: []byte(large)}, KeepOutcome: time.Hour, KeepKey: time.Hour})
	if !errors.Is(err, once.ErrOutcomeRefused) {
		t.Fatalf("Settle returned %v", err) // with which Do would try for a minute
	}
	got, err := once.Do(t.Context(), s, work, func(context.Context, once.Key) (string, error) { return large, nil })
	if err != nil || got != large {
		t.Errorf("Do returned %d bytes, %v", len(got), err)
	}
	if _, err := once.Do(t.Context(), s, work, paid); !errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("the second Do returned %v", err)
	}
	large = large[:7<<20]
	for range 2 {
		got, err = once.Do(t.Context(), s, pay.For("2"), func(context.Context, once.Key) (string, error) { return large, nil })
		if err != nil || got != large {
			t.Errorf("Do returned %d bytes, %v", len(got), err)
		}
	}
}
