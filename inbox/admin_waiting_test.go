package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var discards = inbox.Decision{By: "me", Reason: "a test order"}

func (b *bench) discardWaiting(s inbox.AdminStore, q store.ShelfQuery) inbox.Tally {
	b.t.Helper()
	tally, err := inbox.Admin{Store: s}.DiscardWaiting(b.t.Context(), q, discards)
	if err != nil {
		b.t.Fatal(err)
	}
	return tally
}

// A message that waits for another attempt is given up. Later messages with its
// ordering key are handled, and a copy of it is a duplicate.
func TestAWaitingMessageCanBeDiscarded(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "m0" {
				return once.RetryAfter(time.Hour, errors.New("down"))
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"), ordered("m1", "k"), ordered("m2", "k"))
		await(t, "all wait", func() bool { return len(b.onTheShelf(store.Waiting)) == 3 })
		await(t, "the first one is not being handled", func() bool { return !strings.HasPrefix(b.onTheShelf()[0].Reason, "begun") })
		got := b.discardWaiting(b.store, store.ShelfQuery{Consumer: "billing", IDs: []string{"m0"}})
		if got != (inbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
			t.Errorf("%+v", got)
		}
		await(t, "the later ones are handled", func() bool { return b.count("m1") == 1 && b.count("m2") == 1 })
		gone := b.onTheShelf(store.Discarded)
		if len(gone) != 1 || !strings.Contains(gone[0].History, "discarded by me: a test order (it was waiting: ") {
			t.Errorf("discarded: %+v", gone)
		}
		if sh.log { // a log has no copies, and a position no keys
			return
		}
		b.publish("orders", ordered("m0", "k"))
		await(t, "the copy is a duplicate", func() bool { return c.Stats.Duplicates.Load() == 1 })
		if left := b.onTheShelf(store.Waiting); len(left) > 0 {
			t.Errorf("waiting: %+v", left)
		}
	})
}

// A message is not given up while its handler runs, by a transaction or beside it.
// When it has ended, nothing waits.
func TestAMessageThatIsHandledIsNotDiscarded(t *testing.T) {
	for _, mode := range []string{"Tx", "Do"} {
		t.Run(mode, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				begun, end := make(chan struct{}), make(chan struct{})
				handle := func() {
					begun <- struct{}{}
					<-end
				}
				c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
					handle()
					return "sent", nil
				})
				if mode == "Tx" {
					c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
						handle()
						return b.effect(ctx, tx, m)
					})
				}
				b.shelve("mail", message("m0"))
				start(t, c)
				<-begun
				if got := b.discardWaiting(b.store, store.ShelfQuery{Consumer: "mail"}); got != (inbox.Tally{Matched: 1, Taken: 1}) {
					t.Errorf("while it is handled: %+v", got)
				}
				close(end)
				await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
				if got := b.discardWaiting(b.store, store.ShelfQuery{Consumer: "mail"}); got != (inbox.Tally{}) {
					t.Errorf("after it was handled: %+v", got)
				}
			})
		})
	}
}

// A process begins an attempt after the key of the message was decided about. It
// meets a duplicate, and the decision holds.
func TestADiscardThatHasTheKeyForestallsTheConsumer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.shelve("billing", message("m0"))
		c := shapes[0].consumer(b, b.effect)
		slow := &ill{Store: b.store}
		slow.change = func() error {
			start(t, c)
			await(t, "the attempt", func() bool { return c.Stats.Duplicates.Load() == 1 })
			return nil
		}
		if got := b.discardWaiting(slow, store.ShelfQuery{Consumer: "billing"}); got != (inbox.Tally{Matched: 1, Changed: 1}) {
			t.Errorf("%+v", got)
		}
		b.wantDiscarded("m0")
		if waiting := b.onTheShelf(store.Waiting, store.Parked); len(waiting) > 0 || b.count("m0") > 0 {
			t.Errorf("m0 has %d effects, and on the shelf are %+v", b.count("m0"), waiting)
		}
	})
}

// The attempt has the key when somebody wants to discard its message.
func TestADiscardThatTheConsumerForestalledLeavesTheMessage(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.shelve("billing", message("m0"))
		slow := &dying{ill: ill{Store: b.store}, before: func(call string) {
			if call == "Claim" {
				claim := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "billing", ID: "m0"}, Owner: [16]byte{1}}, Lease: time.Second}
				if _, err := b.store.Claim(t.Context(), claim); err != nil {
					t.Error(err)
				}
			}
		}}
		if got := b.discardWaiting(slow, store.ShelfQuery{Consumer: "billing"}); got != (inbox.Tally{Matched: 1, Taken: 1}) {
			t.Errorf("%+v", got)
		}
		start(t, shapes[0].consumer(b, b.effect))
		await(t, "handled", func() bool { return b.count("m0") == 1 })
	})
}

// dying is a store whose process ends at one of its calls: before the call has an
// effect, or after it.
type dying struct {
	ill
	left   int // calls until then
	after  bool
	calls  []string
	before func(call string)
}

var errKilled = errors.New("the process has ended")

func (s *dying) call(name string, do func() error) error {
	time.Sleep(time.Millisecond) // between two calls of a store the time goes on
	s.calls = append(s.calls, name)
	if s.before != nil {
		s.before(name)
		return do()
	}
	switch s.left--; {
	case s.left < 0, s.left == 0 && !s.after:
		return errKilled
	case s.left == 0:
		_ = do()
		return errKilled
	}
	return do()
}

func (s *dying) Shelved(ctx context.Context, q store.ShelfQuery) (ms []store.Shelved, err error) {
	err = s.call("Shelved", func() (err error) { ms, err = s.Store.Shelved(ctx, q); return err })
	return ms, err
}

func (s *dying) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	err = s.call("Get", func() (err error) { rec, err = s.Store.Get(ctx, k); return err })
	return rec, err
}

func (s *dying) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.call("Claim", func() (err error) { rec, err = s.Store.Claim(ctx, r); return err })
	return rec, err
}

func (s *dying) Settle(ctx context.Context, set once.Settlement) error {
	return s.call("Settle", func() error { return s.Store.Settle(ctx, set) })
}

func (s *dying) Change(ctx context.Context, m store.Shelved) error {
	return s.call("Change", func() error { return s.Store.Change(ctx, m) })
}

// wantDiscarded checks that the key of a message is done as rejected.
func (b *bench) wantDiscarded(id string) {
	b.t.Helper()
	rec, err := b.store.Get(b.t.Context(), once.Key{Operation: "billing", ID: id})
	if err != nil || rec.Status != once.Done || !rec.Outcome.Rejected {
		b.t.Errorf("the key of %s is %v, rejected: %v, %v", id, rec.Status, rec.Outcome.Rejected, err)
	}
}

// Whenever the process of DiscardWaiting ends, the same call completes the
// decision, at once and later: neither the message nor a copy of it runs.
func TestADiscardThatWasInterruptedIsCompletedByTheSameCall(t *testing.T) {
	for _, key := range []string{"free", "unknown"} {
		for _, later := range []time.Duration{0, time.Minute} {
			for kill := 1; ; kill++ {
				ended, skipped := false, true
				ok := t.Run(fmt.Sprintf("%s/call %d/%v", key, kill, later), func(t *testing.T) {
					onLongBench(t, func(t *testing.T, b *bench) {
						skipped = false
						for _, after := range []bool{false, true} {
							id := fmt.Sprint("m-", after)
							b.shelve("billing", message(id))
							if key == "unknown" {
								claim := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "billing", ID: id}, Owner: [16]byte{1}}, Lease: time.Second}
								if _, err := b.store.Claim(t.Context(), claim); err != nil {
									t.Fatal(err)
								}
								time.Sleep(time.Minute)
							}
							q := store.ShelfQuery{Consumer: "billing", IDs: []string{id}}
							s := &dying{ill: ill{Store: b.store}, left: kill, after: after}
							_, err := inbox.Admin{Store: s}.DiscardWaiting(t.Context(), q, discards)
							ended = err == nil
							time.Sleep(later)
							b.discardWaiting(b.store, q)
							b.wantDiscarded(id)
							if is := b.onTheShelf(store.Waiting); len(is) > 0 {
								t.Errorf("killed at %v: waiting: %+v", s.calls, is)
							}
						}
						c := shapes[0].consumer(b, b.effect)
						b.publish("orders", message("m-false"), message("m-true"))
						start(t, c)
						await(t, "the copies are duplicates", func() bool { return c.Stats.Duplicates.Load() == 2 })
					})
				})
				if !ok || skipped {
					break
				}
				if ended {
					if kill < 5 {
						t.Errorf("it ended after %d calls", kill)
					}
					break
				}
			}
		}
	}
}

// parkingMeanwhile is a store in which a message fails for good once its key is done.
type parkingMeanwhile struct {
	*memstore.Store
	row store.Shelved
}

func (s *parkingMeanwhile) Settle(ctx context.Context, set once.Settlement) error {
	err := s.Store.Settle(ctx, set)
	if err == nil && set.Status == once.Done {
		s.row.State, s.row.Reason = store.Parked, "attempt 3: no"
		err = s.Store.Change(ctx, s.row)
	}
	return err
}

// The decision had the key of a message that failed for good meanwhile, so that
// nobody could have it tried again.
func TestAMessageThatIsParkedWhileItIsDiscardedIsDiscarded(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.shelve("billing", message("m0"))
		s := &parkingMeanwhile{b.store, b.onTheShelf(store.Waiting)[0]}
		q := store.ShelfQuery{Consumer: "billing"}
		if got := b.discardWaiting(s, q); got != (inbox.Tally{Matched: 1, Changed: 1}) {
			t.Errorf("%+v", got)
		}
		if got := b.onTheShelf(store.Discarded); len(got) != 1 || !strings.Contains(got[0].History, "it was parked: attempt 3: no") {
			t.Errorf("discarded: %+v", got)
		}
	})
}

// goneMeanwhile is a store in which a consumer takes a message for a duplicate once its key is
// done, and which then fails.
type goneMeanwhile struct {
	*memstore.Store
	row  store.Shelved
	fail bool
}

func (s *goneMeanwhile) Settle(ctx context.Context, set once.Settlement) error {
	err := s.Store.Settle(ctx, set)
	if err == nil && set.Status == once.Done {
		s.row.State, s.fail = store.Handled, true
		err = s.Store.Change(ctx, s.row)
	}
	return err
}

func (s *goneMeanwhile) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if s.fail {
		return nil, errors.New("connection reset")
	}
	return s.Store.Shelved(ctx, q)
}

// Nobody is told that a message has moved on by itself if the decision has its key.
func TestADiscardThatCannotBeReadBackIsNoMove(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.shelve("billing", message("m0"))
		s := &goneMeanwhile{Store: b.store, row: b.onTheShelf(store.Waiting)[0]}
		got, err := inbox.Admin{Store: s}.DiscardWaiting(t.Context(), store.ShelfQuery{Consumer: "billing"}, discards)
		if err == nil || got.Moved > 0 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// Messages in the queue of a consumer are given up before they are delivered, and
// not while a process has them.
func TestAQueuedMessageCanBeDiscarded(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		from := storebroker.New(b.store, nil)
		begun, end := make(chan struct{}), make(chan struct{})
		c := b.counting("billing", from)
		c.Concurrency = 1
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			begun <- struct{}{}
			<-end
			return b.effect(ctx, tx, m)
		})
		stop := start(t, c)
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if errs := b.carry(from, "m0"); errs != nil {
			t.Fatal(errs)
		}
		<-begun
		queue := store.ShelfQuery{Consumer: store.QueueOf("billing")}
		if got := b.discardWaiting(b.store, queue); got != (inbox.Tally{Matched: 1, Taken: 1}) {
			t.Errorf("while a process has it: %+v", got)
		}
		close(end)
		await(t, "handled", func() bool { return b.count("m0") == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		m1 := message("m1")
		m1.Topic, m1.Header = "orders", map[string]string{broker.SeqHeader: "7"} // as a relay publishes it
		carry := func() {
			if errs := from.Publisher().Publish(t.Context(), []*broker.Message{m1}); errs != nil {
				t.Fatal(errs)
			}
		}
		carry()
		if errs := b.carry(from, "m2"); errs != nil {
			t.Fatal(errs)
		}
		queue.IDs = []string{b.onTheShelf(store.Waiting)[0].Message.ID}
		if got := b.discardWaiting(b.store, queue); got != (inbox.Tally{Matched: 1, Changed: 1}) {
			t.Errorf("in the queue: %+v", got)
		}
		carry() // again: the relay did not learn that it was published
		c = b.counting("billing", from)
		start(t, c)
		await(t, "the other one is handled", func() bool { return b.count("billing m2") == 1 })
		if waiting := b.onTheShelf(store.Waiting); len(waiting) > 0 || b.count("billing m1") > 0 {
			t.Errorf("m1 was handled %d times, and in the queue are %+v", b.count("billing m1"), waiting)
		}
	})
}

// spoiledShelf has a message that cannot be read, not even its ID.
type spoiledShelf struct{ *memstore.Store }

func (s spoiledShelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	found, err := s.Store.Shelved(ctx, q)
	for i := range found {
		if m := &found[i]; m.Message.ID == "bad" && !q.Bodiless {
			m.Message, m.Key, m.Unopened = broker.Message{}, "", fmt.Errorf("%w: the header is no JSON", once.ErrCorrupt)
		}
	}
	return found, err
}

// What cannot be read, and what cannot be opened, is given up without an ID, and
// nothing else is.
func TestUnreadableMessagesCanBeDiscarded(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		for _, id := range []string{"good", "bad", "good too"} {
			b.shelve("billing", message(id))
		}
		by := discards
		by.Unopened = true
		admin := inbox.Admin{Store: spoiledShelf{b.store}}
		for _, by.DryRun = range []bool{true, false} {
			got, err := admin.DiscardWaiting(t.Context(), store.ShelfQuery{}, by)
			if err != nil || got != (inbox.Tally{Matched: 1, Changed: 1}) {
				t.Errorf("dry run %v: %+v, %v", by.DryRun, got, err)
			}
		}
		var left []string
		for _, m := range b.onTheShelf(store.Waiting) {
			left = append(left, m.Message.ID)
		}
		if !slices.Equal(left, []string{"good", "good too"}) {
			t.Errorf("left: %q", left)
		}
		if _, err := (inbox.Admin{Store: b.store}).DiscardWaiting(t.Context(), store.ShelfQuery{}, discards); !errors.Is(err, once.ErrInvalid) {
			t.Error("everything was discarded:", err)
		}
		_, err := inbox.Admin{Store: b.store}.DiscardWaiting(t.Context(), store.ShelfQuery{Consumer: "billing"}, inbox.Decision{})
		if !errors.Is(err, once.ErrInvalid) {
			t.Error("nobody has decided:", err)
		}
	})
}
