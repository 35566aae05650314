//go:build linux

package cosmosstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

// beforeSlash derives the partition key of work from the ID of its key.
func beforeSlash(k once.Key) string {
	customer, _, _ := strings.Cut(k.ID, "/")
	return customer
}

// Messages are delivered several times, to two consumers at once, while requests
// and replies are lost: each is handled once.
func TestAConsumerHandlesEachMessageOnce(t *testing.T) {
	const messages, copies = 40, 3
	s := fakecosmos.New()
	defer s.Close()
	ctx := proof.Soon(t)
	proof.Must(t, create(ctx, s.URL))
	seed := proof.Seed(t)
	chance, mu := rand.New(rand.NewPCG(seed, 3)), sync.Mutex{}
	s.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		mu.Lock()
		defer mu.Unlock()
		if chance.IntN(20) > 0 {
			return fakecosmos.None
		}
		return []fakecosmos.Fault{fakecosmos.LoseRequest, fakecosmos.LoseReply, fakecosmos.Unavailable}[chance.IntN(3)]
	})
	b, stats := membroker.New(nil), new(inbox.Stats)
	orders := b.Queue("orders")
	var sent []*broker.Message
	for i := range messages * copies {
		id := i % messages
		sent = append(sent, &broker.Message{ID: fmt.Sprint(id), Topic: "orders", Body: []byte(customer(id))})
	}
	chance.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	for _, err := range b.Publisher().Publish(ctx, sent) {
		proof.Must(t, err)
	}
	running, stop := context.WithCancel(ctx)
	var consumers sync.WaitGroup
	for range 2 {
		o, err := open(s.URL, &cosmosstore.Options{Partition: beforeSlash, Options: once.Options{Logger: proof.Logger(t)}})
		proof.Must(t, err)
		c := &inbox.Consumer{Name: "accounts", Source: orders, Stats: stats,
			Key: func(m *broker.Message) (string, error) { return string(m.Body) + "/" + m.ID, nil },
			Handler: inbox.Tx(o.store, func(_ context.Context, tx *cosmosstore.Tx, m *broker.Message) error {
				var i int
				_, err := fmt.Sscan(m.ID, &i)
				tx.CreateItem(entry(m.ID, i))
				return err
			})}
		consumers.Go(func() {
			if err := c.Run(running); err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
	proof.Await(t, "all messages are handled", func() bool {
		return stats.Handled.Load()+stats.Duplicates.Load() >= messages*copies
	})
	stop()
	consumers.Wait()
	s.SetFault(nil)
	o, err := open(s.URL, nil)
	proof.Must(t, err)
	for i := range messages {
		if n, err := entries(ctx, o.accounts, fmt.Sprint(i), i); err != nil || n != 1 {
			t.Errorf("%s=%d: message %d was handled %d times, %v", proof.SeedVar, seed, i, n, err)
		}
	}
}
