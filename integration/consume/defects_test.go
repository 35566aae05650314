//go:build linux

package consume

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/store"
)

// TestPositionInAStreamThatOvertakes: a consumer of JetStream gets the
// unacknowledged messages of a dead one after later messages, and yet delivers
// positions. No message may be taken for handled because it is before the
// position.
func TestPositionInAStreamThatOvertakes(t *testing.T) {
	const n = 8
	w := newWorldOn(t, sqlite)
	s := newStand(t, w)
	o := openOffice(t, natsJS, false)
	ms := plainMessagesOf(o, n)
	o.publish(t, ms[:n/2])
	js, err := offices.DialNATS(o.Address)
	must(t, err)
	dead, err := natsbroker.New(js, nil).Consumer(o.Place, group).Open(soon(t), n)
	must(t, err)
	got := 0
	for got < n/2 {
		ds, err := dead.Receive(soon(t), n)
		must(t, err)
		got += len(ds)
	}
	js.Conn().Close() // it says no good-bye

	o.publish(t, ms[n/2:])
	source, end, err := o.source(w.store)
	must(t, err)
	t.Cleanup(end)
	c := &inbox.Consumer{Name: "billing", Source: source, Checkpoint: true, Handler: w.tx(s.place.handle),
		Stats: new(inbox.Stats)}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(soon(t)) }()
	settled := func() int64 { return c.Stats.Handled.Load() + c.Stats.Duplicates.Load() }
	await(t, "all were handled, or the consumer has refused to start", func() bool {
		return settled() >= n || len(ended) > 0
	})
	if len(ended) > 0 { // a refusal loses nothing
		if err := <-ended; err == nil {
			t.Error("the consumer has refused nothing, and has not handled all")
		}
		return
	}
	w.onceEach(t, n)
}

// TestPositionInAStream: without faults, each message is handled once. The only
// partition of a stream has no name.
func TestPositionInAStream(t *testing.T) {
	const n = 30
	w := newWorldOn(t, sqlite)
	s := newStand(t, w)
	o := openOffice(t, natsLg, true)
	o.publish(t, plainMessagesOf(o, n))
	source, end, err := o.source(w.store)
	must(t, err)
	t.Cleanup(end)
	c := &inbox.Consumer{Name: "billing", Source: source, Checkpoint: true, Handler: w.tx(s.place.handle),
		Stats: new(inbox.Stats), BatchSize: batch, Concurrency: 4}
	stop := run(t, c)
	await(t, "all of it is settled", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() >= n })
	must(t, stop())
	w.onceEach(t, n)
	w.inOrder(t)
}

// TestDeadlyMessageOnTheShelf: a message that kills its process was replayed by
// a person. The number of its attempts is limited on the shelf, too.
func TestDeadlyMessageOnTheShelf(t *testing.T) {
	w := newWorldOn(t, sqlite)
	o := openOffice(t, natsJS, false)
	m := note{Kind: deadly}.message(o.topic, "deadly")
	replayed := store.Shelved{Consumer: "soak", Key: "deadly", Message: *m, State: store.Waiting}
	must(t, w.store.Shelve(t.Context(), []store.Shelved{replayed}))
	p := plan{Base: w.Place, Post: o.post, Calls: filepath.Join(t.TempDir(), "calls"), Shape: shapeTx}
	f := startFleet(t, p, 1)
	parked := func() bool { return len(w.shelf(t, store.Parked)) == 1 }
	await(t, "it is parked, or has killed too many", func() bool {
		for _, m := range w.shelf(t, store.Waiting) {
			if m.Due > 5*time.Second { // what a dead process had taken is left alone for two minutes: they pass at once
				m.Due = 0
				_ = w.store.Change(t.Context(), m) // somebody else may have changed it, which is as well
			}
		}
		return parked() || f.Deaths() > 2*attempts
	})
	if deaths := f.Deaths(); !parked() || deaths > attempts+1 {
		t.Errorf("it has killed %d processes, and is parked: %v", deaths, parked())
	}
}

// TestCopyOfAParkedMessageInALog: where keys are kept besides positions, a copy
// of a parked message is not handled.
func TestCopyOfAParkedMessageInALog(t *testing.T) {
	onBoth(t, func(t *testing.T, s *stand) {
		c := s.consumer(positioned)
		c.Key = key
		run(t, c)
		bad := note{Kind: poison}.message("orders", "bad")
		s.publish(t, bad)
		await(t, "it is parked", func() bool { return len(s.shelf(t, store.Parked)) == 1 })
		failed := c.Stats.Failed.Load()
		for range 2 {
			s.publish(t, bad)
		}
		s.publish(t, note{Kind: plain}.message("orders", "behind"))
		s.handled(t, 1)
		await(t, "the copies are dealt with", func() bool { return c.Stats.Duplicates.Load()+c.Stats.Parked.Load() >= 3 })
		if now := c.Stats.Failed.Load(); now != failed {
			t.Errorf("it was tried again while it was parked: it has failed %d times, before it were %d", now, failed)
		}
	})
}

// TestAttemptsOfRedelivered: a redelivered message has as many attempts as any
// other.
func TestAttemptsOfRedelivered(t *testing.T) {
	for _, m := range []mode{one, many} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *stand) {
				session, err := s.broker.Queue("orders").Open(t.Context(), 1)
				must(t, err)
				s.publish(t, note{Kind: poison}.message("orders", "bad"))
				_, err = session.Receive(t.Context(), 1)
				must(t, err)
				must(t, session.Close(t.Context()))
				c := s.consumer(m)
				run(t, c)
				await(t, "it is parked", func() bool { return len(s.shelf(t, store.Parked)) == 1 })
				if failed := c.Stats.Failed.Load(); failed != attempts {
					t.Errorf("it has failed %d times, it has %d attempts", failed, attempts)
				}
			})
		})
	}
}

// TestCopyBehindAParkedMessage: a copy of a handled message is a duplicate and
// does not wait on the shelf, even if a message of its ordering key was parked
// since.
func TestCopyBehindAParkedMessage(t *testing.T) {
	onBoth(t, func(t *testing.T, s *stand) {
		r := openRemote(t, 1)
		r.heal()
		c := s.consumer(one)
		c.Handler = inbox.Do(s.store, &once.Operation[string]{OnUnknown: once.Resend}, s.place.send(r.url))
		run(t, c)
		first := note{Kind: plain, Ord: "k", Seq: 1}.message("orders", "first")
		s.publish(t, first)
		await(t, "it is handled", func() bool { return c.Stats.Handled.Load() == 1 })
		s.publish(t, note{Kind: poison, Ord: "k", Seq: 2}.message("orders", "bad"))
		await(t, "the other one is parked", func() bool { return c.Stats.Parked.Load() == 1 })
		s.publish(t, first)
		await(t, "the copy is dealt with", func() bool { return c.Stats.Duplicates.Load()+c.Stats.Shelved.Load() > 0 })
		if all := s.shelf(t, store.Waiting); len(all) > 0 {
			t.Errorf("what was handled waits on the shelf: %s", all[0].Reason)
		}
	})
}
