//go:build go1.25

package storebroker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// The messages of a process that died are delivered within its lease, to a process
// whose log says for whom it waits. What the dead one still settles is an error.
func TestTheMessagesOfADeadProcessComeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, said := memstore.New(nil), new(lines)
		dying := &stalled{Store: shared}
		dead := open(t, storebroker.New(dying, nil), "billing")
		alive := storebroker.New(shared, &storebroker.Options{Logger: slog.New(slog.NewTextHandler(said, nil))})
		publish(t, alive, message("1", "key"), message("2", "key"), message("3", ""))
		had := receive(t, dead, 2)
		time.Sleep(time.Minute) // it renews its lease
		dying.dead.Store(true)
		begun := time.Now()
		s := open(t, alive, "billing")
		got := receive(t, s, 2)
		if waited := time.Since(begun); waited > 10*time.Second+200*time.Millisecond {
			t.Errorf("its messages came after %v", waited)
		}
		for _, d := range got {
			if !d.Redelivered || d.Message.Attempt != 2 {
				t.Errorf("%s came with attempt %d, redelivered %v", d.Message.ID, d.Message.Attempt, d.Redelivered)
			}
		}
		if text := said.String(); !strings.Contains(text, "no longer answers") || !strings.Contains(text, "process ") {
			t.Errorf("the log does not say for whom it waits: %q", text)
		}
		must(t, s.Ack(soon(t), got))
		if next := receive(t, s, 1); next[0].Message.ID != "2" {
			t.Errorf("after the first of its key came %s", next[0].Message.ID)
		}
		dying.dead.Store(false)
		if err := dead.Ack(soon(t), had); !errors.Is(err, broker.ErrSettled) {
			t.Errorf("settling what another process has returned %v", err)
		}
	})
}

// A session whose replies are lost knows its own renewals again.
func TestARenewalWhoseReplyIsLostKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New(nil)
		deaf := &stalled{Store: shared}
		b := storebroker.New(deaf, nil)
		s := open(t, b, "billing")
		publish(t, b, message("1", ""))
		had := receive(t, s, 1)
		deaf.deaf.Store(true)
		time.Sleep(5 * time.Second) // a renewal is made, and fails
		deaf.deaf.Store(false)
		time.Sleep(time.Minute)
		other, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if ds, err := open(t, storebroker.New(shared, nil), "billing").Receive(other, 1); err == nil {
			t.Errorf("another session got %d messages that this one has", len(ds))
		}
		must(t, s.Ack(soon(t), had))
	})
}

// An idle session reads the queue a few times a second.
func TestAnIdleSessionIsCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := &stalled{Store: memstore.New(nil)}
		s := open(t, storebroker.New(counted, nil), "billing")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if n := counted.reads.Load(); n > 7*60 {
			t.Errorf("%d reads in a minute in which nothing came", n)
		}
	})
}

// A message that was published elsewhere comes within Poll.
func TestMessagesOfOtherProcessesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New(nil)
		s := open(t, storebroker.New(shared, nil), "billing")
		got := make(chan time.Time)
		go func() {
			receive(t, s, 1)
			got <- time.Now()
		}()
		time.Sleep(30 * time.Second)
		publish(t, storebroker.New(shared, nil), message("1", ""))
		if begun := time.Now(); (<-got).Sub(begun) > 200*time.Millisecond {
			t.Errorf("it came after %v", time.Since(begun))
		}
	})
}

// damaged is a store in which some messages cannot be read.
type damaged struct {
	carrier
	ids []string
}

func (d *damaged) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	rows, err := d.carrier.Shelved(ctx, q)
	for i, row := range rows {
		if slices.Contains(d.ids, row.Key) {
			rows[i].Unopened = fmt.Errorf("%w: a test says so", once.ErrCorrupt)
		}
	}
	return rows, err
}

// A message that cannot be opened becomes a dead letter, if no later one has to
// wait for it.
func TestAMessageThatCannotBeOpenedKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, said := &damaged{memstore.New(nil), []string{"1", "alone"}}, new(lines)
		b := storebroker.New(d, &storebroker.Options{Logger: slog.New(slog.NewTextHandler(said, nil))})
		s := open(t, b, "billing")
		publish(t, b, message("1", "key"), message("2", "key"), message("alone", ""), message("3", ""))
		must(t, s.Ack(soon(t), receive(t, s, 1)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if ds, err := s.Receive(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("behind a message that cannot be opened came %q, %v", ids(ds), err)
		}
		if dead := deadLetters(t, d, "billing"); len(dead) != 1 || dead[0].ID != "alone" {
			t.Errorf("dead letters are %v", dead)
		}
		if text := said.String(); !strings.Contains(text, "level=ERROR") {
			t.Errorf("the log has no error: %q", text)
		}
		d.ids = nil // it was mended
		time.Sleep(time.Minute)
		for _, id := range []string{"1", "2"} {
			ds := receive(t, s, 1)
			if got := ids(ds); got[0] != id {
				t.Errorf("got %q, and not %s", got, id)
			}
			must(t, s.Ack(soon(t), ds))
		}
	})
}

// hanging is a store whose changes do not return, whatever their contexts say, while
// there is a channel.
type hanging struct {
	carrier
	until atomic.Pointer[chan struct{}]
}

func (h *hanging) Change(ctx context.Context, m store.Shelved) error {
	if until := h.until.Load(); until != nil {
		<-*until
	}
	return h.carrier.Change(ctx, m)
}

// Whoever waits for a store that does not return obeys his own context.
func TestSettlingAndClosingObeyTheirContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{carrier: memstore.New(nil)}
		b := storebroker.New(h, nil)
		s := open(t, b, "billing")
		publish(t, b, message("1", ""), message("2", ""))
		had := receive(t, s, 2)
		hangs := make(chan struct{})
		h.until.Store(&hangs)
		time.Sleep(4 * time.Second) // a renewal hangs
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Ack(ctx, had[:1]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Ack returned %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close returned %v", err)
		}
		h.until.Store(nil)
		close(hangs)
	})
}
