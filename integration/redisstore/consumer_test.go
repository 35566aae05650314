//go:build linux

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/redisstore"
)

// A consumer commits its rows in Redis together with the keys of its messages,
// also while acknowledgements are lost and messages are delivered twice. One that
// cannot be handled is set aside.
func TestAConsumerHandlesEachMessageOnce(t *testing.T) {
	const messages, poison = 200, "message-50"
	c := startNode(t).client(t)
	s := redisstore.New(c, &redisstore.Options{Options: once.Options{Logger: proof.Logger(t)}})
	for name, handler := range map[string]inbox.Handler{
		"one": inbox.Tx(s, func(ctx context.Context, tx *redisstore.Tx, m *broker.Message) error {
			if m.ID == poison {
				return once.Permanent(errors.New("no such order"))
			}
			return tx.Incr(ctx, "one "+m.ID).Err()
		}),
		"batch": inbox.Batch(s, func(ctx context.Context, tx *redisstore.Tx, ms []*broker.Message) error {
			for _, m := range ms {
				if m.ID == poison {
					return inbox.Failed(m, once.Permanent(errors.New("no such order")))
				}
				if err := tx.Incr(ctx, "batch "+m.ID).Err(); err != nil {
					return err
				}
			}
			return nil
		}),
	} {
		b := membroker.New(nil)
		var all []*broker.Message
		for i := range messages {
			all = append(all, &broker.Message{ID: fmt.Sprint("message-", i), Topic: name})
		}
		stats := new(inbox.Stats)
		consumer := &inbox.Consumer{Name: name, Source: b.Queue(name), Stats: stats, Handler: handler}
		b.Duplicate(messages / 4)
		for _, result := range b.Publisher().Publish(t.Context(), append(all, all[:messages/2]...)) {
			proof.Must(t, result)
		}
		b.LoseAcks(messages / 4)
		ctx, cancel := context.WithCancel(proof.Soon(t))
		ended := make(chan error, 1)
		go func() { ended <- consumer.Run(ctx) }()
		proof.Await(t, "the messages are handled", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("%s: Run ended with %v", name, err)
			default:
			}
			return stats.Handled.Load() >= messages-1 && len(b.Messages(name)) == 0
		})
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		aside, err := s.Shelved(proof.Soon(t), store.ShelfQuery{Consumer: name})
		if err != nil || len(aside) != 1 || aside[0].Message.ID != poison {
			t.Errorf("%s: the shelf has %v, %v", name, aside, err)
		}
		for _, m := range all {
			want := "1"
			if m.ID == poison {
				want = ""
			}
			if n := c.Get(proof.Soon(t), name+" "+m.ID).Val(); n != want {
				t.Errorf("%s: %s was handled %q times, not %q", name, m.ID, n, want)
			}
		}
		t.Logf("%s: %d handled, %d duplicates", name, stats.Handled.Load(), stats.Duplicates.Load())
	}
}
