//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// hubReader is a consumer of a hub with positions in a store. Its handler notes
// the ID of each message in the transaction.
type hubReader struct {
	*hubPlace
	store *memstore.Store
}

func (h *hubs) reader(tb testing.TB, partitions int) *hubReader {
	p := h.place(tb, partitions)
	return &hubReader{p, p.members.(*memstore.Store)}
}

func (r *hubReader) consumer() *inbox.Consumer {
	return &inbox.Consumer{Name: "readers", Source: r.source, Checkpoint: true, BatchSize: 1, Stats: new(inbox.Stats),
		Handler: r.handler(r.store)}
}

func (r *hubReader) handler(in once.TxStore[*memstore.Tx]) inbox.Handler {
	return inbox.Tx(in, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
		read, _ := tx.Get("read")
		tx.Set("read", read+" "+m.ID)
		return nil
	})
}

// start runs a consumer. ended has the result of its Run.
func (r *hubReader) start(tb testing.TB, c *inbox.Consumer) (stop context.CancelFunc, ended chan error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- c.Run(ctx)
	}()
	tb.Cleanup(func() { stop(); <-done })
	return stop, ended
}

// endOf returns the result of a consumer that ends by itself.
func endOf(tb testing.TB, ended chan error) error {
	tb.Helper()
	select {
	case err := <-ended:
		return err
	case <-proof.Soon(tb).Done():
		tb.Fatal("the consumer goes on")
		return nil
	}
}

// read returns the IDs that were handled, in order.
func (r *hubReader) read() []string {
	read, _ := r.store.Value("read")
	return strings.Fields(read)
}

func (r *hubReader) await(tb testing.TB, n int) {
	tb.Helper()
	proof.Await(tb, fmt.Sprint(n, " were handled"), func() bool { return len(r.read()) >= n })
}

func (r *hubReader) publish(tb testing.TB, from, to int) {
	tb.Helper()
	var ms []*broker.Message
	for i := from; i < to; i++ {
		ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: r.hub, OrderingKey: fmt.Sprint("k", i%8)})
	}
	p := r.broker.Publisher() // with a connection that was not cut
	defer p.Close()
	publish(tb, p, ms...)
}

// onceEach fails unless each of n messages was handled once.
func (r *hubReader) onceEach(tb testing.TB, n int) {
	tb.Helper()
	read := r.read()
	slices.Sort(read)
	if len(read) != n || len(slices.Compact(read)) != n {
		tb.Errorf("of %d messages were handled: %v", n, r.read())
	}
}

// Each session reads the hub from its start. The position tells what was handled.
func TestEventHubsReplaysAreRecognised(t *testing.T) {
	t.Parallel()
	r := startHubs(t).reader(t, 2)
	for i := range 3 {
		c := r.consumer()
		stop, ended := r.start(t, c)
		r.publish(t, 10*i, 10*i+10)
		r.await(t, 10*i+10)
		if i == 1 {
			r.hubs.DropConnections()
		}
		stop()
		proof.Must(t, <-ended)
	}
	r.onceEach(t, 30)
}

// stalling is a store that calls before before a position moves.
type stalling struct {
	*memstore.Store
	before func(to store.Position)
}

func (s *stalling) TransactAt(ctx context.Context, from, to store.Position, body func(*memstore.Tx) error) error {
	s.before(to)
	return s.Store.TransactAt(ctx, from, to, body)
}

// A process that hangs loses its partition, and commits nothing when it goes on.
func TestEventHubsOwnerThatLostItsPartitionCommitsNothing(t *testing.T) {
	t.Parallel()
	r := startHubs(t).reader(t, 2)
	r.publish(t, 0, 8)
	moving := r.hub + "/1" // the second session gets this partition
	hangs, goOn := make(chan struct{}), make(chan struct{})
	var hung atomic.Bool
	one := r.consumer()
	one.Handler = r.handler(&stalling{r.store, func(to store.Position) {
		if to.Partition == moving && !hung.Swap(true) {
			close(hangs)
			<-goOn
		}
	}})
	r.start(t, one)
	<-hangs
	two := r.consumer()
	r.start(t, two)
	r.await(t, 8)
	close(goOn)
	r.publish(t, 8, 24)
	r.await(t, 24)
	r.onceEach(t, 24)
	if two.Stats.Handled.Load() == 0 {
		t.Error("the second process has handled nothing")
	}
}

func TestEventHubsRecreatedHubStopsItsConsumer(t *testing.T) {
	t.Parallel()
	r := startHubs(t).reader(t, 1)
	r.publish(t, 0, 5)
	_, ended := r.start(t, r.consumer())
	r.await(t, 5)
	r.hubs.CreateHub(r.hub, 1)
	r.publish(t, 100, 103)
	if err := endOf(t, ended); !errors.Is(err, inbox.ErrLogChanged) {
		t.Errorf("the consumer ended with %v", err)
	}
	r.onceEach(t, 5)
	_, ended = r.start(t, r.consumer())
	if err := endOf(t, ended); err == nil || !strings.Contains(err.Error(), "created=") {
		t.Errorf("the next one ended with %v", err)
	}
}

// After a forced failover, new messages have the sequence numbers of lost ones.
func TestEventHubsHubThatLostItsEndStopsItsConsumer(t *testing.T) {
	t.Parallel()
	r := startHubs(t).reader(t, 1)
	r.publish(t, 0, 10)
	stop, ended := r.start(t, r.consumer())
	r.await(t, 10)
	stop()
	proof.Must(t, <-ended)
	r.hubs.TruncateHub(r.hub, 0, 4)
	r.publish(t, 100, 103)
	c := r.consumer()
	_, ended = r.start(t, c)
	proof.Await(t, "the consumer ends, or passes over messages", func() bool { return len(ended) > 0 || c.Stats.Duplicates.Load() > 4 })
	if c.Stats.Duplicates.Load() > 4 {
		t.Fatal("new messages were taken for handled")
	}
	if err := endOf(t, ended); !errors.Is(err, broker.ErrInvalid) || !strings.Contains(err.Error(), "has lost its end") {
		t.Errorf("the consumer ended with %v", err)
	}
	r.onceEach(t, 10)
}

func TestEventHubsRetentionIsLoud(t *testing.T) {
	t.Parallel()
	r := startHubs(t).reader(t, 1)
	r.publish(t, 0, 4)
	stop, ended := r.start(t, r.consumer())
	r.await(t, 4)
	stop()
	proof.Must(t, <-ended)
	r.publish(t, 4, 10)
	r.hubs.TrimHub(r.hub, 0, 6)
	s := openSession(t, r.source, 10)
	at := *receive(t, s, 1)[0].Position
	proof.Must(t, s.Close(proof.Soon(t)))
	c := r.consumer()
	stop, ended = r.start(t, c)
	proof.Await(t, "a session has ended", func() bool { return c.Stats.Received.Load() >= 2 })
	if got := r.read(); len(got) != 4 {
		t.Errorf("4 and 5 are lost, and %v were handled", got)
	}
	stop()
	proof.Must(t, <-ended)
	rows, err := r.store.Positions(proof.Soon(t), "readers")
	proof.Must(t, err)
	if len(rows) != 1 || rows[0].Offset != 3 || rows[0].Partition != at.Partition {
		t.Fatal(rows)
	}
	rows[0].Offset, rows[0].Digest = at.Offset-1, [16]byte{} // a person decides to skip them
	proof.Must(t, r.store.SetPosition(proof.Soon(t), rows[0]))
	r.start(t, r.consumer())
	r.await(t, 8)
	r.onceEach(t, 8)
}
