//go:build go1.25

package observe_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

// steps are the events that were logged, and those that an observer got.
type steps struct {
	mu       sync.Mutex
	logged   map[string]bool
	observed map[string]bool
}

func (s *steps) Enabled(context.Context, slog.Level) bool { return true }
func (s *steps) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s *steps) WithGroup(string) slog.Handler            { return s }
func (s *steps) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" && strings.HasSuffix(r.Message, ": event") {
			s.mu.Lock()
			s.logged[a.Value.String()] = true
			s.mu.Unlock()
		}
		return true
	})
	return nil
}

func (s *steps) Begin(context.Context, string, once.Key) (context.Context, func(once.CallResult)) {
	return nil, nil
}

func (s *steps) Event(_ context.Context, e once.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observed[e.Name] = true
}

func (s *steps) has(event string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logged[event]
}

// Each event of the list happens in a life that has everything in it, none happens that is not listed, and all are in the
// documentation.
func TestEventsAreEmittedListedAndDocumented(t *testing.T) {
	seen := &steps{logged: make(map[string]bool), observed: make(map[string]bool)}
	logger := slog.New(seen)
	s := &faulty{Store: memstore.New(&memstore.Options{Options: once.Options{Logger: logger, Observer: seen}})}
	ctx := t.Context()
	parks := &once.Operation[string]{Name: "parks", OnUnknown: once.Park}
	resends := &once.Operation[string]{Name: "resends", OnUnknown: once.Resend, Policy: once.Policy{Lease: 300 * time.Millisecond}}
	brief := &once.Operation[string]{Name: "brief", OnUnknown: once.Park, Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Nanosecond}}
	asks := &once.Operation[string]{Name: "asks", Lookup: func(context.Context, once.Key) (string, bool, error) { return "", true, nil }}
	do := func(op *once.Operation[string], id string, err error) {
		_, _ = once.Do(ctx, s, op.For(id), func(ctx context.Context, _ once.Key) (string, error) {
			once.NoteKeyAnswer(ctx, once.KeyReplayed, nil)
			once.NoteKeyAnswer(ctx, once.KeyConflict, errNet)
			return "", err
		})
	}
	do(brief, "1", nil)                  // claimed, done, key_replayed, key_conflict
	do(parks, "1", once.ErrRejected)     // rejected
	do(parks, "1", nil)                  // replayed
	do(parks, "2", once.NotDone(errNet)) // released
	do(parks, "3", errNet)               // parked
	do(parks, "3", nil)                  // refused
	do(asks, "1", errNet)                // unknown
	do(asks, "1", nil)                   // asked
	rec, err := s.Get(ctx, parks.For("3").Key())
	if err == nil {
		err = once.MarkNotDone(ctx, s, rec, "looked") // decided
	}
	if err != nil {
		t.Fatal(err)
	}
	working, joining := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = once.Do(ctx, s, resends.For("joined"), func(ctx context.Context, _ once.Key) (string, error) {
			close(working)
			<-joining
			for !seen.has(observe.LeaseExtended) && ctx.Err() == nil { // lease_extended
				time.Sleep(time.Millisecond)
			}
			return "", nil
		})
	})
	<-working
	both.Go(func() {
		close(joining)
		_, _ = once.Do(ctx, s, resends.For("joined"), func(context.Context, once.Key) (string, error) { return "", nil }) // joined
	})
	both.Wait()
	_, _ = once.Do(ctx, lossy{s}, resends.For("lost"), func(ctx context.Context, _ once.Key) (string, error) { // lease_lost
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	if err := (&janitor.Janitor{Store: s, Logger: logger}).Sweep(ctx); err != nil { // forgotten
		t.Fatal(err)
	}
	messages(t, s.Store, logger)

	text, err := os.ReadFile("../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Events\n")
	section, _, _ = strings.Cut(section, "\n### ")
	for _, event := range observe.Events() {
		if !seen.logged[event] {
			t.Errorf("nothing logs %s", event)
		}
		if !seen.observed[event] && event != observe.Forgotten && !strings.HasPrefix(event, "message_") {
			t.Errorf("no observer gets %s", event)
		}
		if !strings.Contains(section, "`"+event+"`") {
			t.Errorf("docs/observing.md does not explain %s", event)
		}
	}
	for event := range seen.logged {
		if !slices.Contains(observe.Events(), event) {
			t.Errorf("%s happens, and is not in the list", event)
		}
	}
}

// lossy is a store whose leases are lost.
type lossy struct{ *faulty }

func (lossy) Extend(context.Context, once.Fence, time.Duration) error { return once.ErrLeaseLost }

// messages sends one from an outbox to a consumer.
func messages(t *testing.T, s *memstore.Store, logger *slog.Logger) {
	t.Helper()
	b := membroker.New(nil)
	b.Queue("orders")
	tx := s.Begin()
	err := outbox.New(s, nil).Put(t.Context(), tx, &broker.Message{ID: "1", Topic: "orders"})
	if err = errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	handled, ended := make(chan struct{}), make(chan error, 2)
	consumer := &inbox.Consumer{Name: "billing", Source: b.Queue("orders"), Handler: inbox.Tx(s,
		func(context.Context, *memstore.Tx, *broker.Message) error {
			close(handled)
			return nil
		})}
	go func() { ended <- (&outbox.Relay{Store: s, Publisher: b.Publisher(), Logger: logger}).Run(ctx) }()
	go func() { ended <- consumer.Run(ctx) }()
	<-handled
	cancel()
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
}
