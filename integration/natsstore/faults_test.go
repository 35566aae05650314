package natsstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/natswire"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/nats-io/nats.go/jetstream"
)

// Each kind of request is lost once, or its reply is, and then the call goes on
// as if nothing had happened.
func TestLostRequestsAndReplies(t *testing.T) {
	server := offices.StartNATS(t)
	migrated(t, dial(t, server.URL()), nil)
	faults := make(map[string]natswire.Fault)
	var names []string
	for _, kind := range []string{"STREAM.INFO", "MSG.GET", "MSG.DELETE", "open", "done"} {
		faults["request of "+kind], faults["reply to "+kind] = natswire.Request, natswire.Reply
		names = append(names, "request of "+kind, "reply to "+kind)
	}
	proof.Beside(t, len(names), names, func(t *testing.T, name string) {
		left := 1
		w := &natswire.Wire{Choose: func(subject, _ string) natswire.Fault {
			if strings.HasSuffix(name, kindOf(subject)) && left > 0 {
				left--
				return faults[name]
			}
			return natswire.None
		}}
		s := natsstore.New(natswire.Connect(t, server.URL(), w), nil)
		ran := 0
		pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park, Policy: once.Policy{Lease: time.Minute}}
		for range 2 {
			got, err := once.Do(proof.Soon(t), s, pay.For(name), func(context.Context, once.Key) (string, error) {
				ran++
				return "paid", nil
			})
			if err != nil || got != "paid" {
				t.Errorf("Do returned %q, %v", got, err)
			}
		}
		if ran != 1 || left != 0 {
			t.Errorf("the work ran %d times; %d faults did not happen", ran, left)
		}
	})
}

// A claim or a settlement that arrives after the next one changes nothing.
func TestLateRequestsAreRefused(t *testing.T) {
	server := offices.StartNATS(t)
	sure := migrated(t, dial(t, server.URL()), nil)
	proof.Beside(t, 2, []string{"open", "done"}, func(t *testing.T, kind string) {
		left := 1
		w := &natswire.Wire{Choose: func(subject, _ string) natswire.Fault {
			if kindOf(subject) == kind && left > 0 {
				left--
				return natswire.Late
			}
			return natswire.None
		}}
		s := natsstore.New(natswire.Connect(t, server.URL(), w), nil)
		pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park, Policy: once.Policy{Lease: time.Minute}}
		work := pay.For("late " + kind)
		got, err := once.Do(proof.Soon(t), s, work, func(context.Context, once.Key) (string, error) { return "paid", nil })
		if err != nil || got != "paid" {
			t.Errorf("Do returned %q, %v", got, err)
		}
		before, err := sure.Get(t.Context(), work.Key())
		proof.Must(t, err)
		if n := w.Arrive(t); n != 1 {
			t.Fatalf("%d requests were late", n)
		}
		_, err = s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: pay.For("after " + kind).Key(), Owner: [16]byte{1}},
			Lease: time.Hour}) // its request follows the late one on the same connection
		proof.Must(t, err)
		after, err := sure.Get(t.Context(), work.Key())
		if err != nil || after.Status != once.Done || !after.Updated.Equal(before.Updated) || after.Attempt != 1 {
			t.Errorf("after the late request, Get returned %+v, %v", after, err)
		}
	})
}

func TestRoundTrips(t *testing.T) {
	server := offices.StartNATS(t)
	migrated(t, dial(t, server.URL()), nil)
	w := &natswire.Wire{Choose: func(string, string) natswire.Fault { return natswire.None }}
	s := natsstore.New(natswire.Connect(t, server.URL(), w), nil)
	key := once.Key{Operation: "pay", ID: "1"}
	fence := once.Fence{Key: key, Owner: [16]byte{1}, Attempt: 1}
	_, err := s.Get(t.Context(), key) // asks for the time
	proof.Must(t, err)
	requests(w)
	for _, c := range []struct {
		name string
		call func() error
		want map[string]int
	}{
		{"Claim", func() error {
			_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
			return err
		}, map[string]int{"open": 1}},
		{"Claim of a duplicate", func() error {
			_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}}, Lease: time.Hour})
			return err
		}, map[string]int{"open": 1, "MSG.GET": 1}},
		{"Get", func() error { _, err := s.Get(t.Context(), key); return err }, map[string]int{"MSG.GET": 1}},
		{"Extend", func() error { return s.Extend(t.Context(), fence, time.Hour) }, map[string]int{"open": 1}},
		{"Settle", func() error {
			return s.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour})
		}, map[string]int{"done": 1}},
	} {
		proof.Must(t, c.call())
		got := requests(w)
		delete(got, "MSG.DELETE") // Settle does not wait for it
		if !maps.Equal(got, c.want) {
			t.Errorf("%s made the requests %v, not %v", c.name, got, c.want)
		}
	}
	for range 100 {
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}}, Lease: time.Hour})
		proof.Must(t, err)
	}
	if n := requests(w); n["open"] > 10 || n["MSG.GET"] != 100 {
		t.Errorf("many repeats made %v", n)
	}
	for i := range 1100 {
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "many", ID: fmt.Sprint(i)},
			Owner: [16]byte{1}}, Lease: time.Hour})
		proof.Must(t, err)
	}
	if n := requests(w); n["open"] != 1100 || n["MSG.GET"] > 20 {
		t.Errorf("claims of 1100 new keys made %v", n)
	}
	for _, limit := range []int{1, 1000} {
		requests(w)
		_, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Parked}, Limit: limit})
		proof.Must(t, err)
		if n := requests(w); n["MSG.GET"] > 2000 || n["STREAM.INFO"] > 200 {
			t.Errorf("a page of at most %d made %v", limit, n)
		}
	}
}

// A settlement leaves a message behind if its second request is lost. It is
// neither listed nor kept.
func TestListAndForgetDeleteWhatSettlementsLeaveBehind(t *testing.T) {
	server := offices.StartNATS(t)
	clean := migrated(t, dial(t, server.URL()), nil)
	w := &natswire.Wire{Choose: func(subject, _ string) natswire.Fault {
		if kindOf(subject) == "MSG.DELETE" {
			return natswire.Request
		}
		return natswire.None
	}}
	s := natsstore.New(natswire.Connect(t, server.URL(), w), nil)
	stream, err := dial(t, server.URL()).Stream(t.Context(), "KV_once")
	proof.Must(t, err)
	pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	for name, do := range map[string]func() error{
		"List": func() error {
			page, err := clean.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running, once.Unknown, once.Parked}})
			if len(page.Records) > 0 {
				t.Errorf("List returned %v", page.Records)
			}
			return err
		},
		"Forget": func() error { _, err := clean.Forget(t.Context(), 100); return err },
	} {
		for i := range 20 {
			_, err := once.Do(t.Context(), s, pay.For(fmt.Sprint(name, i)), func(context.Context, once.Key) (string, error) { return "paid", nil })
			proof.Must(t, err)
		}
		if n := len(subjects(t, stream, "open")); n != 20 {
			t.Errorf("before %s, %d messages are left behind", name, n)
		}
		proof.Must(t, do())
		proof.Settled(t, 10*time.Second, func() []string { return subjects(t, stream, "open") })
		rec, err := clean.Get(t.Context(), pay.For(name+"0").Key())
		if err != nil || rec.Status != once.Done {
			t.Errorf("after %s, Get returned %v, %v", name, rec.Status, err)
		}
	}
}

// subjects returns those of the messages of a kind that the bucket has.
func subjects(t *testing.T, stream jetstream.Stream, kind string) []string {
	t.Helper()
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.once."+kind+".>"))
	proof.Must(t, err)
	return slices.Collect(maps.Keys(info.State.Subjects))
}
