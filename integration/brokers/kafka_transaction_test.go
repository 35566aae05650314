package brokers_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/memstore"
	"github.com/twmb/franz-go/pkg/kgo"
)

// transaction writes messages of one partition in a transaction, which leaves a
// control record at its end, and so do messages that are aborted.
func (k *kafka) transaction(tb testing.TB, topic string, end kgo.TransactionEndTry, messages ...string) {
	tb.Helper()
	client := k.client(kgo.TransactionalID(k.name("producer")), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	proof.Must(tb, client.BeginTransaction())
	for _, id := range messages {
		r := &kgo.Record{Topic: topic, Key: []byte("one"), Value: []byte("x"), Headers: []kgo.RecordHeader{{Key: "once-id", Value: []byte(id)}}}
		proof.Must(tb, client.ProduceSync(proof.Soon(tb), r).FirstErr())
	}
	proof.Must(tb, client.EndTransaction(proof.Soon(tb), end))
}

// awaitNoLag waits until a group has nothing left, as Kafka counts.
func (k *kafka) awaitNoLag(tb testing.TB, w *kafkaStand) {
	tb.Helper()
	end := k.end(tb, w.topic)
	proof.Await(tb, "the group has committed the end of the log", func() bool {
		at, _ := k.committed(tb, w.group, w.topic, 0)
		return at == end
	})
	lag, err := w.b.Topics(w.group, w.topic).(broker.Lagger).Lag(tb.Context())
	if err != nil || lag.Messages != 0 {
		tb.Errorf("all is handled, and the lag is %d, %v", lag.Messages, err)
	}
}

// ways are how the messages that tests read past come into being.
var ways = map[string]func(*testing.T, *kafka, string){
	"committed": func(t *testing.T, k *kafka, topic string) {
		k.transaction(t, topic, kgo.TryCommit, "m1", "m2")
	},
	"aborted at the end": func(t *testing.T, k *kafka, topic string) {
		k.transaction(t, topic, kgo.TryCommit, "m1", "m2")
		k.transaction(t, topic, kgo.TryAbort, "never", "nor this")
	},
	"aborted before": func(t *testing.T, k *kafka, topic string) {
		k.transaction(t, topic, kgo.TryAbort, "never", "nor this")
		k.transaction(t, topic, kgo.TryCommit, "m1", "m2")
	},
}

// A group settles what it has read past: after retention has deleted it all,
// nothing is lost.
func TestKafkaSettlesControlRecordsAndAbortedMessages(t *testing.T) {
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			eachKafka(t, func(t *testing.T, k *kafka) {
				w := k.stand(1, kafkabroker.Options{})
				write(t, k, w.topic)
				s := w.open(t, 10)
				ds := receive(t, s, 2)
				if got := fmt.Sprint(ids(ds)); got != "[m1 m2]" {
					t.Fatalf("came %s", got)
				}
				receiveNothing(t, s, 200*time.Millisecond)
				kafkaAck(t, s, ds[1])
				if at, _ := k.committed(t, w.group, w.topic, 0); at > ds[0].Position.Offset {
					t.Fatalf("offset %d is committed, and %d is not settled", at, ds[0].Position.Offset)
				}
				kafkaAck(t, s, ds[0])
				k.awaitNoLag(t, w)
				kafkaClose(t, s)
				k.cut(t, w.topic, k.end(t, w.topic))
				k.transaction(t, w.topic, kgo.TryCommit, "m3")
				s = w.open(t, 10)
				if got := fmt.Sprint(ids(receive(t, s, 1))); got != "[m3]" {
					t.Errorf("after retention came %s", got)
				}
				kafkaClose(t, s)
			})
		})
	}
}

// With positions in the store, a consumer seeks to its last message. What was
// deleted after it were no messages, whether the session has read past them or an
// earlier one.
func TestKafkaPositionsSurviveDeletedControlRecords(t *testing.T) {
	for name, write := range ways {
		for _, deleted := range []string{"all", "up to the next message"} {
			t.Run(name+", "+deleted, func(t *testing.T) {
				eachKafka(t, func(t *testing.T, k *kafka) {
					w := k.stand(1, kafkabroker.Options{})
					store := memstore.New(nil)
					var mu sync.Mutex
					var handled []string
					came := func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(handled) }
					run := func() (stop func()) {
						c := &inbox.Consumer{Name: "billing", Source: w.b.Topics(w.group, w.topic), Checkpoint: true, StopTime: time.Second}
						c.Handler = inbox.Tx(store, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
							mu.Lock()
							defer mu.Unlock()
							handled = append(handled, m.ID)
							return nil
						})
						ctx, cancel := context.WithCancel(t.Context())
						ended := make(chan error, 1)
						go func() { ended <- c.Run(ctx) }()
						return func() {
							cancel()
							proof.Must(t, <-ended)
						}
					}
					write(t, k, w.topic)
					stop := run()
					proof.Await(t, "two are handled", func() bool { return len(came()) == 2 })
					k.awaitNoLag(t, w)
					stop()
					end := k.end(t, w.topic)
					if deleted == "all" {
						k.cut(t, w.topic, end)
					}
					k.transaction(t, w.topic, kgo.TryCommit, "m3")
					if deleted != "all" {
						k.transaction(t, w.topic, kgo.TryAbort, "never")
						k.cut(t, w.topic, end)
					}
					stop = run()
					proof.Await(t, "the next is handled", func() bool { return len(came()) == 3 })
					k.awaitNoLag(t, w)
					stop()
					if got := fmt.Sprint(came()); got != "[m1 m2 m3]" {
						t.Errorf("handled were %s", got)
					}
				})
			})
		}
	}
}

// A seek to a message whose successors are deleted is still refused.
func TestKafkaSeekKnowsWhatIsLost(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		k.transaction(t, w.topic, kgo.TryCommit, "m1", "m2") // with a control record at 2
		k.transaction(t, w.topic, kgo.TryCommit, "m3")       // at 3
		s := w.open(t, 10)
		ds := receive(t, s, 3)
		receiveNothing(t, s, 200*time.Millisecond)
		k.cut(t, w.topic, 3)
		seek := func(after int) error {
			p := *ds[after].Position
			return s.(broker.Seeker).Seek(proof.Soon(t), p)
		}
		if seek(0) == nil {
			t.Error("m2 is deleted, and the session can continue after m1")
		}
		proof.Must(t, seek(1))
		if got := fmt.Sprint(ids(receive(t, s, 1))); got != "[m3]" {
			t.Errorf("after m2 came %s", got)
		}
	})
}
