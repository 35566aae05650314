package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// kafkaLedger records what several sessions of a group do.
type kafkaLedger struct {
	mu    sync.Mutex
	acked map[string]int      // how often an Ack of the message was not an error
	again map[string]struct{} // delivered after that
	begun chan struct{}       // one element for each delivery, as long as somebody listens
}

func newKafkaLedger() *kafkaLedger {
	return &kafkaLedger{acked: make(map[string]int), again: make(map[string]struct{}), begun: make(chan struct{}, 100_000)}
}

// work consumes until the session or the context ends, and settles in reverse.
// One in so many is returned first, unless that is 0.
func (l *kafkaLedger) work(ctx context.Context, s broker.Session, returned int) {
	for turn := 0; ; turn++ {
		ds, err := s.Receive(ctx, 7)
		if err != nil {
			return
		}
		l.mu.Lock()
		for _, d := range ds {
			if l.acked[d.Message.ID] > 0 {
				l.again[d.Message.ID] = struct{}{}
			}
			l.begun <- struct{}{}
		}
		l.mu.Unlock()
		for i := len(ds) - 1; i >= 0; i-- {
			if returned > 0 && (turn+i)%returned == 0 && ds[i].Message.Attempt == 1 {
				_ = s.Return(context.Background(), ds[i:i+1], time.Millisecond)
			} else if s.Ack(context.Background(), ds[i:i+1]) == nil {
				l.mu.Lock()
				l.acked[ds[i].Message.ID]++
				l.mu.Unlock()
			}
		}
	}
}

func (l *kafkaLedger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *kafkaLedger) wait(tb testing.TB, deliveries int) {
	tb.Helper()
	late := time.After(proof.Patience)
	for range deliveries {
		select {
		case <-l.begun:
		case <-late:
			tb.Fatalf("the deliveries stopped: %d messages are acked", l.size())
		}
	}
}

func TestKafkaRebalancesWithoutRepeatingWhatIsAcked(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		"cooperative": nil,
		"eager":       {kgo.Balancers(kgo.RangeBalancer())},
		"server side": {kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()},
	} {
		t.Run(name, func(t *testing.T) {
			eachKafka(t, func(t *testing.T, k *kafka) { rebalances(t, k, opts) })
		})
	}
}

func rebalances(t *testing.T, k *kafka, opts []kgo.Opt) {
	const n = 3000
	w := k.stand(6, kafkabroker.Options{CommitEvery: time.Hour}, opts...)
	ledger := newKafkaLedger()
	var leave []func() // each has a session finish what it has, and close
	join := func() {
		s := w.open(t, 20)
		ctx, cancel := context.WithCancel(t.Context())
		var worker sync.WaitGroup
		worker.Go(func() { ledger.work(ctx, s, 0) })
		leave = append(leave, func() {
			cancel()
			worker.Wait()
			kafkaClose(t, s)
		})
	}
	publish := func(from, to int) {
		var ms []*broker.Message
		for i := from; i < to; i++ {
			ms = append(ms, &broker.Message{ID: fmt.Sprint("m", i), Topic: w.topic, OrderingKey: fmt.Sprint("k", i%50)})
		}
		w.publish(t, ms...)
	}
	join()
	publish(0, n/3)
	ledger.wait(t, 200)
	join()
	publish(n/3, 2*n/3)
	ledger.wait(t, n/3)
	join()
	publish(2*n/3, n)
	ledger.wait(t, n/3)
	leave[0]()
	proof.Await(t, "all messages are acked", func() bool { return ledger.size() == n })
	leave[1]()
	leave[2]()
	if len(ledger.again) > 0 {
		t.Errorf("%d messages came again after they were acked: %v", len(ledger.again), ledger.again)
	}
	kafkaQuiet(t, w.open(t, 20))
}

func TestKafkaGivesWhatAKilledSessionHadToAnother(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		topic, group, l := k.topic(1), k.name("group"), new(line)
		b := k.broker(kafkabroker.Options{CommitEvery: time.Millisecond})
		timeout := 6 * time.Second // the shortest that a real cluster allows
		if k.fake != nil {
			timeout = time.Second
		}
		often := kafkabroker.Options{CommitEvery: time.Millisecond}
		killed := k.broker(often, kgo.Dialer(l.dial), kgo.SessionTimeout(timeout))
		p := b.Publisher()
		defer p.Close()
		publish(t, p, kafkaMessages(topic, 10)...)
		s := kafkaOpen(t, killed.Topics(group, topic), 5)
		ds := receive(t, s, 5)
		kafkaAck(t, s, ds[0], ds[1], ds[3]) // the third is not acked, so the fourth is not committed
		proof.Await(t, "the acks are committed", func() bool {
			offset, _ := k.committed(t, group, topic, 0)
			return offset == 2
		})
		l.kill()

		got := receive(t, kafkaOpen(t, b.Topics(group, topic), 100), 8)
		for i, d := range got {
			if want := fmt.Sprint("m", i+2); d.Message.ID != want || i < 3 && !d.Redelivered {
				t.Errorf("delivery %d is %s, redelivered: %v; want %s", i, d.Message.ID, d.Redelivered, want)
			}
		}
		if err := s.Ack(t.Context(), ds[2:3]); err == nil {
			proof.Await(t, "the killed session learns that it is dead", func() bool {
				return s.Ack(t.Context(), ds[4:5]) != nil
			})
		}
	})
}

func TestKafkaCommitsOnlyWhatIsSettledWithoutAGap(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 5)
		s := w.open(t, 10)
		ds := receive(t, s, 5)
		if err := s.Return(t.Context(), ds[1:2], time.Minute); err != nil {
			t.Fatal(err)
		}
		kafkaAck(t, s, ds[0], ds[2], ds[3], ds[4])
		w.publish(t, &broker.Message{ID: "more", Topic: w.topic, OrderingKey: "one"})
		if more := receive(t, s, 1); more[0].Message.ID != "more" || more[0].Redelivered {
			t.Errorf("behind a returned message came %+v", more[0])
		}
		kafkaClose(t, s)
		if offset, note := k.committed(t, w.group, w.topic, 0); offset != 1 || !strings.HasPrefix(note, "once 6 ") {
			t.Errorf("committed is offset %d with the note %q; want 1, and that 6 were handed out", offset, note)
		}
		w.publish(t, &broker.Message{ID: "new", Topic: w.topic, OrderingKey: "one"})
		got := receive(t, w.open(t, 10), 6)
		if fmt.Sprint(ids(got)) != "[m1 m2 m3 m4 more new]" {
			t.Errorf("came %v", ids(got))
		}
		for i, d := range got {
			if d.Redelivered != (i < 5) {
				t.Errorf("%s: Redelivered is %v", d.Message.ID, d.Redelivered)
			}
		}
	})
}

// TestKafkaIsRedeliveredIfItCannotKnow has another program write the offset of
// the group.
func TestKafkaIsRedeliveredIfItCannotKnow(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 3)
		s := w.open(t, 10)
		ds := receive(t, s, 3)
		kafkaAck(t, s, ds...)
		kafkaClose(t, s)

		k.commit(t, w.group, w.topic, 0, 1, "")
		s = w.open(t, 10)
		if err := s.(broker.Seeker).Seek(t.Context(), *ds[0].Position); err != nil {
			t.Fatal(err)
		}
		kafkaClose(t, s) // it received nothing, so it does not know either
		s = w.open(t, 10)
		got := receive(t, s, 2)
		w.publish(t, &broker.Message{ID: "new", Topic: w.topic})
		got = append(got, receive(t, s, 1)...)
		if !got[0].Redelivered || !got[1].Redelivered || got[2].Redelivered {
			t.Errorf("%v are redelivered: %v %v %v; want those that were there before", ids(got), got[0].Redelivered,
				got[1].Redelivered, got[2].Redelivered)
		}
	})
}

// TestKafkaDeliversNothingBeyondTheCommittedReach prevents a new group from
// committing its reach.
func TestKafkaDeliversNothingBeyondTheCommittedReach(t *testing.T) {
	k := fakeKafka(t)
	w := k.stand(1, kafkabroker.Options{})
	w.fill(t, 3)
	fault := k.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	s := w.open(t, 10)
	kafkaQuiet(t, s)
	if fault.Hits() == 0 {
		t.Error("no commit was tried")
	}
	fault.Remove()
	receive(t, s, 3)
	if offset, note := k.committed(t, w.group, w.topic, 0); offset != 0 || !strings.HasPrefix(note, "once 1") {
		t.Errorf("messages were handed out, and committed is %d with the note %q", offset, note)
	}
}

// commit commits an offset for a group without members.
func (k *kafka) commit(tb testing.TB, group, topic string, partition int32, offset int64, note string) {
	tb.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = group
	at := kmsg.NewOffsetCommitRequestTopic()
	part := kmsg.NewOffsetCommitRequestTopicPartition()
	part.Partition, part.Offset, part.Metadata = partition, offset, &note
	at.Topic, at.Partitions = topic, append(at.Partitions, part)
	req.Topics = append(req.Topics, at)
	resp, err := req.RequestWith(tb.Context(), k.client(kgo.MaxVersions(kversion.V2_8_0())))
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		tb.Fatalf("committing: %v", err)
	}
}

// TestKafkaReleasesARevokedPartitionInTime has a handler that takes longer than
// the rebalance timeout.
func TestKafkaReleasesARevokedPartitionInTime(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(2, kafkabroker.Options{CommitEvery: time.Hour}, kgo.RebalanceTimeout(2*time.Second))
		w.publish(t, kafkaSpread(w.topic, 40)...)
		first := w.open(t, 100)
		slow := receive(t, first, 40)
		second := w.open(t, 100)
		moved := receive(t, second, 1)[0].Position.Partition
		stayed := 0
		for _, d := range slow {
			err := first.Ack(t.Context(), []broker.Delivery{d})
			switch {
			case d.Position.Partition == moved && !errors.Is(err, broker.ErrSettled):
				t.Errorf("%s was acked after its partition had moved: %v, want ErrSettled", d.Origin, err)
			case d.Position.Partition == moved:
			case err != nil:
				t.Errorf("%s, whose partition did not move: %v", d.Origin, err)
			default:
				stayed++
			}
		}
		if stayed == 0 || stayed == len(slow) {
			t.Errorf("%d of %d messages stayed: the test shows nothing", stayed, len(slow))
		}
	})
}

// TestKafkaWaitsForHandlersWhenAPartitionMoves acks while the partition is
// being revoked.
func TestKafkaWaitsForHandlersWhenAPartitionMoves(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(2, kafkabroker.Options{CommitEvery: time.Hour})
		w.publish(t, kafkaSpread(w.topic, 40)...)
		first := w.open(t, 100)
		slow := receive(t, first, 40)
		second := w.open(t, 100)
		kafkaQuiet(t, second) // by then the group knows of the second, and waits for the first
		kafkaAck(t, first, slow...)
		proof.Await(t, "both sessions have a partition", func() bool {
			w.publish(t, &broker.Message{ID: "probe", Topic: w.topic, OrderingKey: fmt.Sprint("k", time.Now().UnixNano())})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			ds, _ := second.Receive(ctx, 10)
			for _, d := range ds {
				if d.Message.ID != "probe" {
					t.Fatalf("%s came again, although it was acked", d.Origin)
				}
			}
			return len(ds) > 0
		})
	})
}

// TestKafkaOutlivesErrorsOfTheGroup fails requests of working sessions, like
// brokers that change their roles.
func TestKafkaOutlivesErrorsOfTheGroup(t *testing.T) {
	again, unknown := kerr.RebalanceInProgress, kerr.UnknownMemberID
	faults := map[string]kfake.Fault{
		"commit, not coordinator": {Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.NotCoordinator, Count: 3},
		"commit, loading":         {Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorLoadInProgress, Count: 3},
		"commit, rebalance":       {Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: again, Count: 3},
		"heartbeat, rebalance":    {Keys: []kmsg.Key{kmsg.Heartbeat}, Err: again, Count: 2, TopLevel: true},
		"heartbeat, moved":        {Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.NotCoordinator, Count: 2, TopLevel: true},
		"heartbeat, unknown":      {Keys: []kmsg.Key{kmsg.Heartbeat}, Err: unknown, Count: 1, TopLevel: true},
		"join, unknown":           {Keys: []kmsg.Key{kmsg.JoinGroup}, Err: unknown, Count: 1, TopLevel: true},
		"sync, rebalance":         {Keys: []kmsg.Key{kmsg.SyncGroup}, Err: again, Count: 2, TopLevel: true},
		"fetch, not leader":       {Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.NotLeaderForPartition, Count: 3},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			k := fakeKafka(t)
			handle := k.fake.Fault(fault)
			k.consumesAll(t, func() bool { return handle.Hits() > 0 })
		})
	}
	t.Run("commit, reply lost", func(t *testing.T) {
		k := fakeKafka(t)
		var lost atomic.Int64
		for range 3 {
			k.fake.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
				lost.Add(1)
				return nil, errors.New("the connection is cut"), true
			})
		}
		k.consumesAll(t, func() bool { return lost.Load() == 3 })
	})
}

// consumesAll publishes and consumes until a fault has occurred, and opens
// another session when one breaks. It checks that the group reaches the end.
func (k *kafka) consumesAll(t *testing.T, met func() bool) {
	w := k.stand(3, kafkabroker.Options{CommitEvery: 5 * time.Millisecond})
	ledger, ctx := newKafkaLedger(), t.Context()
	stop, cancel := context.WithCancel(ctx)
	var worker sync.WaitGroup
	worker.Go(func() {
		for stop.Err() == nil {
			s, err := w.b.Topics(w.group, w.topic).Open(stop, 10)
			if err != nil {
				continue
			}
			ledger.work(stop, s, 10)
			kafkaClose(t, s)
		}
	})
	n := 0
	proof.Await(t, "the fault is met", func() bool {
		for range 20 {
			w.publish(t, &broker.Message{ID: fmt.Sprint("m", n), Topic: w.topic, OrderingKey: fmt.Sprint("k", n%20)})
			n++
		}
		return n >= 200 && met()
	})
	proof.Await(t, "all messages are acked", func() bool { return ledger.size() == n })
	proof.Await(t, "all acks are committed", func() bool {
		sum := int64(0)
		for i := range int32(3) {
			offset, _ := k.committed(t, w.group, w.topic, i)
			sum += max(offset, 0)
		}
		return sum == int64(n)
	})
	cancel()
	worker.Wait()
	kafkaQuiet(t, w.open(t, 20))
}
