package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestKafkaBeginsWithTheOldest(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{}, kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()))
		w.fill(t, 6)
		k.cut(t, w.topic, 2)
		got := receive(t, w.open(t, 10), 4)
		if fmt.Sprint(ids(got)) != "[m2 m3 m4 m5]" || got[0].Origin != w.topic+"/0@2" {
			t.Errorf("a new group got %v, from %s on", ids(got), got[0].Origin)
		}
	})
}

// cut deletes the messages of partition 0 before an offset, like retention.
func (k *kafka) cut(tb testing.TB, topic string, before int64) {
	tb.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	at := kmsg.NewDeleteRecordsRequestTopic()
	part := kmsg.NewDeleteRecordsRequestTopicPartition()
	part.Offset = before
	at.Topic, at.Partitions = topic, append(at.Partitions, part)
	req.Topics = append(req.Topics, at)
	if _, err := req.RequestWith(tb.Context(), k.client()); err != nil {
		tb.Fatal(err)
	}
}

func TestKafkaReportsMessagesThatRetentionDeleted(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 6)
		s := w.open(t, 10)
		kafkaAck(t, s, receive(t, s, 6)[:2]...)
		kafkaClose(t, s)
		k.cut(t, w.topic, 4)
		for range 2 { // nor at the second try
			s = w.open(t, 10)
			ctx, cancel := context.WithTimeout(t.Context(), proof.Patience)
			defer cancel()
			ds, err := s.Receive(ctx, 10)
			if err == nil || !strings.Contains(err.Error(), "lost") {
				t.Errorf("offsets 2 and 3 are lost, and Receive returned %v and %v", ids(ds), err)
			}
			if _, second := s.Receive(ctx, 10); second == nil {
				t.Error("the session is not broken")
			}
			kafkaClose(t, s)
		}
		k.commit(t, w.group, w.topic, 0, 4, "")
		got := receive(t, w.open(t, 10), 2)
		if fmt.Sprint(ids(got)) != "[m4 m5]" {
			t.Errorf("after a person has moved the group, it got %v", ids(got))
		}
	})
}

func TestKafkaDetectsARecreatedTopic(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 3)
		s := w.open(t, 10)
		before := receive(t, s, 3)
		kafkaAck(t, s, before...)
		offices.RemoveTopic(t, k.addresses(), w.topic)
		k.create(w.topic, 1)

		// Neither the session nor the publisher may confuse the new topic with
		// the old one.
		proof.Await(t, "the publisher writes to the new topic", func() bool {
			return w.p.Publish(t.Context(), []*broker.Message{{ID: "new", Topic: w.topic}}) == nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), proof.Patience)
		defer cancel()
		if ds, err := s.Receive(ctx, 10); err == nil || ctx.Err() != nil {
			t.Errorf("the session of the old topic got %v and %v", ids(ds), err)
		}
		kafkaClose(t, s)

		s = w.open(t, 10)
		after := receive(t, s, 1)[0]
		was, is := before[0].Position.Log, after.Position.Log
		if after.Message.ID != "new" || is == was || !strings.HasPrefix(is, w.topic+"#") {
			t.Errorf("%s of log %s came, after log %s", after.Message.ID, is, was)
		}
		err := s.(broker.Seeker).Seek(t.Context(), *before[0].Position)
		if !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("seeking to a position of the old log: %v", err)
		}
	})
}

// TestKafkaDoesNotTrustOffsetsOfAnotherLog has offsets that have outlived their
// topic.
func TestKafkaDoesNotTrustOffsetsOfAnotherLog(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 4)
		k.commit(t, w.group, w.topic, 0, 2, "once 2 "+w.topic+"#00112233445566778899aabbccddeeff")
		got := receive(t, w.open(t, 10), 4)
		if fmt.Sprint(ids(got)) != "[m0 m1 m2 m3]" {
			t.Errorf("came %v", ids(got))
		}
	})
}

func TestKafkaSeeks(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{})
		w.fill(t, 1)
		s := w.open(t, 10)
		first := receive(t, s, 1)
		w.publish(t, kafkaMessages(w.topic, 100)[1:]...) // nobody can have had these before
		first = append(first, receive(t, s, 9)...)
		log := first[0].Position.Log
		seek := func(to int64) {
			t.Helper()
			err := s.(broker.Seeker).Seek(t.Context(), broker.Position{Log: log, Partition: w.topic + "/0", Offset: to})
			if err != nil {
				t.Fatalf("Seek to %d: %v", to, err)
			}
		}
		next := func(n int, want string, redelivered bool) []broker.Delivery {
			t.Helper()
			ds := receive(t, s, n)
			if got := ds[0].Message.ID; got != want || ds[0].Redelivered != redelivered {
				t.Errorf("came %s, redelivered: %v; want %s, %v", got, ds[0].Redelivered, want, redelivered)
			}
			return ds
		}
		if err := s.Return(t.Context(), first[:1], time.Minute); err != nil {
			t.Fatal(err)
		}
		seek(49) // with the window full, and one held back
		forward := next(10, "m50", false)
		kafkaAck(t, s, first[1:]...) // is not needed any more, and does nothing
		kafkaQuiet(t, s)             // nor does it make room in the window
		kafkaAck(t, s, forward...)
		seek(3)
		next(10, "m4", true)
		seek(98)
		kafkaAck(t, s, next(1, "m99", false)...)
		kafkaQuiet(t, s)
		seek(98) // from the end, and to where the group is
		next(1, "m99", true)
		seek(-1)
		next(1, "m0", true)
		seek(69)
		kafkaAck(t, s, next(10, "m70", true)...)
		kafkaClose(t, s)
		if offset, _ := k.committed(t, w.group, w.topic, 0); offset != 80 {
			t.Errorf("committed is %d, want 80", offset)
		}

		k.cut(t, w.topic, 90)
		s = kafkaOpen(t, w.b.Topics(k.name("group"), w.topic), 10)
		seek(95) // before anything was received
		next(1, "m96", true)
		seek(-1)
		next(1, "m90", true)
		seeker := s.(broker.Seeker)
		for _, to := range []broker.Position{
			{Log: log, Partition: w.topic + "/0", Offset: 50}, {Log: "x", Partition: w.topic + "/0"},
			{Log: log, Partition: w.topic}, {Log: log, Partition: w.topic + "/9"},
		} {
			if err := seeker.Seek(t.Context(), to); err == nil {
				t.Errorf("Seek to %+v is no error", to)
			}
		}
	})
}

func TestKafkaReadsForeignMessages(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		topic := k.topic(1)
		header := func(pairs ...string) (hs []kgo.RecordHeader) {
			for i := 0; i < len(pairs); i += 2 {
				hs = append(hs, kgo.RecordHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
			}
			return hs
		}
		stamp, early := time.UnixMilli(1_700_000_000_123), "2020-02-02T02:02:02.5Z"
		err := k.client().ProduceSync(t.Context(),
			&kgo.Record{Topic: topic, Timestamp: stamp, Headers: header("Trace", "1", "trace", "2")},
			&kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v"), Headers: header("CE_ID", "event")},
			&kgo.Record{Topic: topic, Headers: header("once-id", "ours", "ce_id", "event", "once-time", early)},
		).FirstErr()
		if err != nil {
			t.Fatal(err)
		}
		got := receive(t, kafkaOpen(t, k.broker(kafkabroker.Options{}).Topics(k.name("group"), topic), 10), 3)
		bare, event, ours := got[0].Message, got[1].Message, got[2].Message
		if bare.ID != "" || bare.Header["trace"] != "2" || !bare.Time.Equal(stamp) || bare.Topic != topic {
			t.Errorf("a message without an ID came as %+v", bare)
		}
		if event.ID != "event" || event.OrderingKey != "k" || string(event.Body) != "v" {
			t.Errorf("a CloudEvent came as %+v", event)
		}
		if ours.ID != "ours" || ours.Time.UnixMilli() != time.Date(2020, 2, 2, 2, 2, 2, 5e8, time.UTC).UnixMilli() {
			t.Errorf("a message with once-id came as %+v", ours)
		}
	})
}

func TestKafkaKnowsTheHorizon(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		b := k.broker(kafkabroker.Options{})
		short := k.topic(1, "retention.ms=3600000", "segment.ms=600000")
		long := k.topic(1, "retention.ms=7200000", "segment.ms=600000")
		for _, c := range []struct {
			topics []string
			want   time.Duration
		}{
			{[]string{short}, 80 * time.Minute},
			{[]string{short, long}, 140 * time.Minute},
			{[]string{short, k.topic(1, "retention.ms=-1")}, 0},
			{[]string{k.topic(1, "cleanup.policy=compact"), short}, 0},
		} {
			got, err := b.Topics("group", c.topics...).(broker.Horizon).RedeliveryHorizon(t.Context())
			if err != nil || got != c.want {
				t.Errorf("the horizon is %v, %v; want %v", got, err, c.want)
			}
		}
		if _, err := b.Topics("group", k.name("none")).(broker.Horizon).RedeliveryHorizon(t.Context()); err == nil {
			t.Error("the horizon of a topic that does not exist is no error")
		}
	})
}

func TestKafkaRefusesToOpen(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		b, topic := k.broker(kafkabroker.Options{}), k.topic(1)
		for name, source := range map[string]broker.Source{
			"no group":                    b.Topics("", topic),
			"no topic":                    b.Topics("group"),
			"a topic that does not exist": b.Topics("group", k.name("none")),
			"options that are wrong":      k.broker(kafkabroker.Options{}, kgo.AutoCommitMarks()).Topics("group", topic),
		} {
			if s, err := source.Open(t.Context(), 1); err == nil {
				t.Errorf("%s is no error", name)
				kafkaClose(t, s)
			}
		}
		if s, err := b.Topics("group", topic).Open(t.Context(), 0); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("a window of 0: %v", err)
			kafkaClose(t, s)
		}
	})
}
