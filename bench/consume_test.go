package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/testenv"
)

func openSession(t *testing.T, s *stream, window int) broker.Session {
	t.Helper()
	session, err := s.Open(t.Context(), window)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func receive(t *testing.T, session broker.Session, limit int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	ds, err := session.Receive(ctx, limit)
	if err != nil {
		t.Fatal(err)
	}
	if len(ds) > limit {
		t.Fatalf("%d messages came where at most %d were asked for", len(ds), limit)
	}
	return ds
}

func TestStreamKeepsToItsWindow(t *testing.T) {
	acked := 0
	session := openSession(t, newStream("s").telling(func(n int, _ time.Duration) { acked += n }), 5)
	ds := append(receive(t, session, 3), receive(t, session, 3)...)
	if len(ds) != 5 {
		t.Fatalf("%d messages are out, want those of the window, 5", len(ds))
	}
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if more, err := session.Receive(ended, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("beyond the window came %v, %v", more, err)
	}
	if err := session.Ack(t.Context(), ds[:2]); err != nil || acked != 2 {
		t.Fatalf("done was told of %d messages, want 2; %v", acked, err)
	}
	if more := receive(t, session, 3); len(more) != 2 {
		t.Errorf("%d messages came in place of 2", len(more))
	}
}

// Each session of a stream gets its own messages, each once, with bodies of the
// configured size.
func TestStreamRepeatsNothing(t *testing.T) {
	s, seen := newStream("s"), map[string]bool{}
	for range 2 {
		for _, d := range receive(t, openSession(t, s, 100), 100) {
			m := d.Message
			if err := m.Check(); err != nil {
				t.Error(err)
			}
			if account, err := accountOf(m); err != nil || account < 0 || account >= accounts || len(m.Body) != bodySize {
				t.Errorf("message %s is about account %d, in %d bytes; %v", m.ID, account, len(m.Body), err)
			}
			seen[m.ID] = true
		}
	}
	if len(seen) != 200 {
		t.Errorf("%d different messages, want 200", len(seen))
	}
}

func TestStreamOfKnownMessagesBeginsAgain(t *testing.T) {
	s := newStream("s")
	s.known, s.again = 3, true
	ds := receive(t, openSession(t, s, 6), 6)
	for i, d := range ds[:3] {
		same := ds[i+3].Message
		if d.Message.ID != same.ID || !slices.Equal(d.Message.Body, same.Body) || !d.Redelivered {
			t.Errorf("message %d is %s with %s, and then %s with %s", i, d.Message.ID, d.Message.Body, same.ID, same.Body)
		}
	}
}

// Positions rise in each partition, across sessions as well, and partitions
// share no account.
func TestLogHasItsOrder(t *testing.T) {
	s := newLog("l", 4)
	last, owner := map[string]int64{}, map[int]string{}
	for range 3 {
		ds := receive(t, openSession(t, s, 40), 40)
		for _, d := range ds {
			if d.Position.Offset != last[d.Position.Partition]+1 {
				t.Errorf("behind %d in partition %s came %d", last[d.Position.Partition], d.Position.Partition, d.Position.Offset)
			}
			last[d.Position.Partition] = d.Position.Offset
			account, err := accountOf(d.Message)
			if err != nil {
				t.Fatal(err)
			}
			if other, taken := owner[account]; taken && other != d.Position.Partition {
				t.Errorf("account %d is in the partitions %s and %s", account, other, d.Position.Partition)
			}
			owner[account] = d.Position.Partition
		}
	}
	if got := fmt.Sprint(last); got != "map[0:30 1:30 2:30 3:30]" {
		t.Errorf("the partitions are at %s, want 30 each", got)
	}
}

// A worker reads one partition and continues where it left off.
func TestShareOfLog(t *testing.T) {
	s := newLog("l", 4)
	session := openSession(t, s, 40)
	receive(t, session, 25)
	receive(t, session, 15)
	for _, d := range receive(t, openSession(t, s.share(6), 5), 5) {
		if d.Position.Partition != "2" || d.Position.Offset <= 10 {
			t.Errorf("got %+v, want partition 2 behind 10", *d.Position)
		}
	}
}
