package eventhubsbroker

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
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/store/memstore"
)

const patience = 20 * time.Second

// world is an imitation of the service with one hub, "orders".
type world struct {
	*fakeamqp.Server
	store  *memstore.Store
	broker *Broker
	ids    int
}

// newWorld returns a world whose hub has n partitions. Every batch checks that the
// hub is the same.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	s, err := fakeamqp.Start()
	must(t, err)
	t.Cleanup(s.Close)
	s.CreateHub("orders", n)
	b, err := New(&Options{ConnectionString: s.ConnectionString(), Lease: 300 * time.Millisecond, HandOver: 500 * time.Millisecond})
	must(t, err)
	b.fresh = 0
	return &world{Server: s, store: memstore.New(nil), broker: b}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// publish publishes n messages with an ordering key. Their IDs count up.
func (w *world) publish(t *testing.T, n int, key string) {
	t.Helper()
	p := w.broker.Publisher()
	defer p.Close()
	var ms []*broker.Message
	for range n {
		w.ids++
		ms = append(ms, &broker.Message{ID: fmt.Sprint(w.ids), Topic: "orders", OrderingKey: key, Body: []byte("x")})
	}
	if errs := p.Publish(soon(t), ms); errs != nil {
		t.Fatal(errs)
	}
}

func (w *world) source() broker.Source { return w.broker.Log("orders", "$Default", w.store) }

func (w *world) open(t *testing.T, window int) *session {
	t.Helper()
	s, err := w.source().Open(soon(t), window)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close(context.Background())) })
	return s.(*session)
}

// receiveN receives n deliveries.
func receiveN(t *testing.T, s broker.Session, n int) (ds []broker.Delivery) {
	t.Helper()
	for len(ds) < n {
		more, err := s.Receive(soon(t), n-len(ds))
		if err != nil {
			t.Fatalf("received %d of %d: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

func offsets(ds []broker.Delivery) (at []int64) {
	for _, d := range ds {
		at = append(at, d.Position.Offset)
	}
	return at
}

// broken receives until the session breaks, and returns why. It fails if messages
// come.
func broken(t *testing.T, s broker.Session) error {
	t.Helper()
	ds, err := s.Receive(soon(t), 10)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("offsets %v came, and %v", offsets(ds), err)
	}
	return err
}

// partitions returns the partitions that a session reads.
func (s *session) partitions() (ids []string) {
	s.tracker.Lock()
	defer s.tracker.Unlock()
	for id, r := range s.readers {
		if !r.leaving {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func TestSessionsShareThePartitions(t *testing.T) {
	w := newWorld(t, 4)
	shares := func(want int, sessions ...*session) func() bool {
		return func() bool {
			var all []string
			for _, s := range sessions {
				own := s.partitions()
				if len(own) < want {
					return false
				}
				all = append(all, own...)
			}
			slices.Sort(all)
			return fmt.Sprint(all) == "[0 1 2 3]"
		}
	}
	one := w.open(t, 9)
	await(t, "one reads all", shares(4, one))
	two := w.open(t, 9)
	await(t, "two read two each", shares(2, one, two))
	var rest []*session
	for range 3 {
		rest = append(rest, w.open(t, 9))
	}
	await(t, "four of five read one each", func() bool {
		var read []string
		for _, s := range append(rest, one, two) {
			read = append(read, s.partitions()...)
		}
		slices.Sort(read)
		return fmt.Sprint(read) == "[0 1 2 3]"
	})
	for _, s := range append(rest, one) {
		must(t, s.Close(soon(t)))
	}
	await(t, "the last one reads all", shares(4, two))
	await(t, "each partition has one receiver", func() bool {
		return w.HubReaders("orders", 0) == 1 && w.HubReaders("orders", 1) == 1 && w.HubReaders("orders", 2) == 1 && w.HubReaders("orders", 3) == 1
	})
}

// A session that has died leaves its slot to the others, and no record to look
// after.
func TestALapsedSlotIsFreed(t *testing.T) {
	w := newWorld(t, 2)
	ctx := soon(t)
	dead := newMembers(w.store, "log", "group", 3, time.Millisecond)
	if rank, of, err := dead.look(ctx); rank != 0 || of != 1 || err != nil {
		t.Fatal(rank, of, err)
	}
	await(t, "the lease has lapsed", func() bool {
		rec, err := w.store.Get(ctx, dead.held.Key)
		return err == nil && rec.Status == once.Unknown
	})
	second := newMembers(w.store, "log", "group", 3, time.Hour)
	second.held = once.Fence{Key: second.key(1), Owner: second.token}
	rec, err := w.store.Claim(ctx, once.ClaimRequest{Fence: second.held, Lease: time.Hour})
	must(t, err)
	second.held.Attempt = rec.Attempt
	if rank, of, err := second.look(ctx); rank != 0 || of != 1 || err != nil {
		t.Errorf("rank %d of %d, %v", rank, of, err)
	}
	if rec, err := w.store.Get(ctx, dead.key(0)); rec.Status != once.Absent || err != nil {
		t.Error(rec.Status, err)
	}
	if rank, of, err := dead.look(ctx); rank != 0 || of != 2 || err != nil { // it takes a slot again
		t.Errorf("rank %d of %d, %v", rank, of, err)
	}
	must(t, dead.leave(ctx))
	if rank, of, err := second.look(ctx); rank != 0 || of != 1 || err != nil {
		t.Errorf("rank %d of %d, %v", rank, of, err)
	}
}

func TestAPartitionMovesWhenItsDeliveriesAreSettled(t *testing.T) {
	w := newWorld(t, 2)
	for i := range 8 { // both partitions
		w.publish(t, 1, fmt.Sprint("key", i))
	}
	one := w.open(t, 100)
	ds := receiveN(t, one, 8)
	two := w.open(t, 100)
	await(t, "one gives up the second partition", func() bool { return len(one.partitions()) == 1 })
	moved := func(d broker.Delivery) bool { return d.Position.Partition == "orders/1" }
	must(t, one.Ack(soon(t), ds)) // also those of the partition that moves
	again := receiveN(t, two, 1)
	if !moved(again[0]) || again[0].Position.Offset != 0 {
		t.Error(again[0].Origin)
	}
}

// A session that does not settle is cut off, and can settle nothing any more.
func TestASessionThatHoldsOnIsOvertaken(t *testing.T) {
	w := newWorld(t, 2)
	for i := range 8 {
		w.publish(t, 1, fmt.Sprint("key", i))
	}
	one := w.open(t, 100)
	ds := receiveN(t, one, 8)
	two := w.open(t, 100)
	receiveN(t, two, 1)
	for i, d := range ds {
		err := one.Ack(soon(t), ds[i:i+1])
		if moved := d.Position.Partition == "orders/1"; moved != (errors.Is(err, errMoved) && errors.Is(err, broker.ErrSettled)) {
			t.Errorf("settling %s: %v", d.Origin, err)
		}
	}
}

func TestAForeignReceiverWithAHigherLevelEndsTheSession(t *testing.T) {
	w := newWorld(t, 1)
	s := w.open(t, 10)
	await(t, "the partition is read", func() bool { return w.HubReaders("orders", 0) == 1 })
	client, err := w.broker.options.consumer("orders", "$Default")
	must(t, err)
	defer client.Close(context.Background())
	foreign := &reader{session: &session{source: s.source, client: client}, id: "0", ctx: t.Context()}
	receiver, err := foreign.open(oldest, 7, 1)
	must(t, err)
	go receiver.ReceiveEvents(t.Context(), 1, nil)
	if err := broken(t, s); !strings.Contains(err.Error(), "consumer group of its own") {
		t.Error(err)
	}
}

func TestSeekContinuesAfterAPosition(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 20, "key")
	s := w.open(t, 30)
	ds := receiveN(t, s, 20)
	for _, offset := range []int64{-1, 0, 10, 18} {
		at := *ds[0].Position
		at.Offset = offset
		must(t, s.Seek(soon(t), at))
		again := receiveN(t, s, int(19-offset))
		if first, last := again[0].Position.Offset, again[len(again)-1].Position.Offset; first != offset+1 || last != 19 {
			t.Errorf("after %d: %d to %d", offset, first, last)
		}
	}
	for name, change := range map[string]func(*broker.Position){
		"another log":       func(p *broker.Position) { p.Log = "orders#before" },
		"another partition": func(p *broker.Position) { p.Partition = "returns/0" },
		"after the end":     func(p *broker.Position) { p.Offset = 20 },
	} {
		at := *ds[0].Position
		change(&at)
		if err := s.Seek(soon(t), at); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	at := *ds[0].Position
	at.Partition = "orders/7"
	if err := s.Seek(soon(t), at); err == nil {
		t.Error("a partition that is not read could be sought")
	}
}

func TestMessagesThatRetentionHasDeletedAreNotSkipped(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 10, "key")
	s := w.open(t, 2) // reads ahead by no more than its window and what the client fetches
	ds := receiveN(t, s, 2)
	w.publish(t, 20, "key")
	w.TrimHub("orders", 0, 25)
	must(t, s.Ack(soon(t), ds))
	for last := int64(1); ; {
		ds, err := s.Receive(soon(t), 2)
		if err != nil {
			if !strings.Contains(err.Error(), "retention has deleted") {
				t.Error(err)
			}
			break
		}
		for _, d := range ds {
			if d.Position.Offset != last+1 {
				t.Fatalf("%d came after %d", d.Position.Offset, last)
			}
			last++
		}
		must(t, s.Ack(soon(t), ds))
	}

	must(t, s.Close(soon(t)))
	s = w.open(t, 10)
	at := *receiveN(t, s, 1)[0].Position
	if at.Offset != 25 {
		t.Fatal(at)
	}
	for offset, lost := range map[int64]bool{0: true, 23: true, 24: false, 25: false} {
		at.Offset = offset
		if err := s.Seek(soon(t), at); (err != nil) != lost {
			t.Errorf("after %d: %v", offset, err)
		}
	}
}

// Messages of the new hub have the sequence numbers that come next in the old one.
func TestARecreatedHubEndsTheSession(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 10, "key")
	s := w.open(t, 100)
	before := *receiveN(t, s, 10)[0].Position
	w.CreateHub("orders", 1)
	w.publish(t, 20, "key")
	if err := broken(t, s); !strings.Contains(err.Error(), "recreated") {
		t.Error(err)
	}
	s = w.open(t, 100)
	if after := receiveN(t, s, 1)[0].Position; after.Log == before.Log || after.Offset != 0 {
		t.Errorf("before %v, and now %v", before, after)
	}
	if err := s.Seek(soon(t), before); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
}

// The receiver waits for a message that the new hub does not have.
func TestAnIdleSessionNoticesThatItsHubWasRecreated(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 10, "key")
	s := w.open(t, 100)
	receiveN(t, s, 10)
	w.CreateHub("orders", 1)
	w.publish(t, 3, "key")
	if err := broken(t, s); !strings.Contains(err.Error(), "recreated") {
		t.Error(err)
	}
}

func TestAnIdleSessionNoticesThatItsHubHasLostItsEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 10, "key")
	s := w.open(t, 100)
	receiveN(t, s, 10)
	w.TruncateHub("orders", 0, 4)
	w.publish(t, 3, "key")
	if err := broken(t, s); !strings.Contains(err.Error(), "has lost its end") {
		t.Error(err)
	}
}

func TestAnAddedPartitionIsRead(t *testing.T) {
	w := newWorld(t, 1)
	s := w.open(t, 100)
	w.AddPartition("orders")
	if err := broken(t, s); !strings.Contains(err.Error(), "has 2 partitions") {
		t.Error(err)
	}
	must(t, s.Close(soon(t)))
	s = w.open(t, 100)
	await(t, "both are read", func() bool { return fmt.Sprint(s.partitions()) == "[0 1]" })
}

func TestADeletedHubEndsTheSession(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 1, "key")
	s := w.open(t, 100)
	receiveN(t, s, 1)
	w.DeleteHub("orders")
	broken(t, s)
	if _, err := w.source().Open(soon(t), 1); err == nil {
		t.Error("a session of a hub that does not exist")
	}
}

func TestACutConnectionEndsTheSession(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, 3, "key")
	s := w.open(t, 100)
	receiveN(t, s, 3)
	w.DropConnections()
	broken(t, s)
	must(t, s.Close(soon(t)))
	receiveN(t, w.open(t, 100), 3)
}

func TestWhatASourceNeeds(t *testing.T) {
	w := newWorld(t, 1)
	for name, s := range map[string]broker.Source{
		"no store":          w.broker.Log("orders", "$Default", nil),
		"no group":          w.broker.Log("orders", "", w.store),
		"an invalid name":   w.broker.Log("orders/1", "$Default", w.store),
		"a dash at the end": w.broker.Log("orders-", "$Default", w.store),
	} {
		if _, err := s.Open(soon(t), 1); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.source().Open(soon(t), 0); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
	for _, o := range []*Options{nil, {Namespace: "shop.servicebus.windows.net"}} {
		if _, err := New(o); !errors.Is(err, broker.ErrInvalid) {
			t.Error(err)
		}
	}
	s, err := w.broker.Log("orders", "nobody", w.store).Open(soon(t), 1)
	must(t, err)
	defer s.Close(context.Background())
	if err := broken(t, s); !strings.Contains(err.Error(), "not-found") {
		t.Error(err)
	}
}
