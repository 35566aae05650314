//go:build go1.25

package outbox_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// poison ends a call of the publisher for one message, as a bug in a publisher
// does.
func poison(id string, end func()) func(*broker.Message) error {
	return func(m *broker.Message) error {
		if m.ID == id {
			end()
		}
		return nil
	}
}

// A message for which the Publisher panics, or ends its goroutine, is stuck after
// its attempts. All others are published, and the process lasts.
func TestAMessageThatThePublisherDoesNotReturnFromIsStuck(t *testing.T) {
	for name, end := range map[string]func(){"panicked": func() { panic("no such field") }, "ended its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				var log strings.Builder
				b.sender.set(nil, poison("m0007", end))
				r := b.relay()
				r.Logger = slog.New(slog.NewTextHandler(&log, nil))
				r.Retry = outbox.Retry{Attempts: 4, Limit: 10 * time.Second}
				stop := b.run(r)
				defer stop()
				b.put(some(20, "m", "")...)
				for i := range 300 { // what gets through shows that the message is to blame
					b.put(message(fmt.Sprint("later", i), ""))
					time.Sleep(time.Second)
				}
				stop()
				stuck, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Stuck})
				b.must(err)
				if len(stuck) != 1 || stuck[0].Message.ID != "m0007" || stuck[0].Attempts != 4 || stuck[0].Reason != "once: the Publisher "+name+", see the log" {
					b.Errorf("stuck are %+v", stuck)
				}
				if n := len(unique(b.sender.taken())); n != 319 {
					b.Errorf("%d messages were published, want 319", n)
				}
				if !strings.Contains(log.String(), "outbox_test.(*sender).Publish") {
					b.Errorf("the log has no stack:\n%.2000s", log.String())
				}
			})
		})
	}
}

// The same from the database's log.
func TestAMessageOfTheLogThatThePublisherPanicsForIsStuck(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := newLogStore(b.store)
		b.sender.set(nil, poison("m0007", func() { panic("no such field") }))
		r := b.relay()
		r.Store, r.Retry = s, outbox.Retry{Attempts: 4, Limit: 10 * time.Second}
		stop := b.run(r)
		defer stop()
		s.put(some(20, "m", "")...)
		for i := range 300 {
			s.put(message(fmt.Sprint("later", i), ""))
			time.Sleep(time.Second)
		}
		stuck := b.rows(store.Stuck)
		if n := len(unique(b.sender.taken())); n != 319 || len(stuck) != 1 || stuck[0] != "m0007" {
			b.Errorf("%d messages were published, want 319; stuck are %q", n, stuck)
		}
	})
}

func unique(ids []string) map[string]bool {
	all := make(map[string]bool)
	for _, id := range ids {
		all[id] = true
	}
	return all
}
