package brokers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The tests in this file stop the adapter between two of its steps.

// kafkaTaken stops the first poll of a client that takes a record, before the
// client returns it.
type kafkaTaken struct {
	once          sync.Once
	taken, resume chan struct{}
}

func (k *kafkaTaken) OnFetchRecordUnbuffered(_ *kgo.Record, polled bool) {
	if polled {
		k.once.Do(func() {
			close(k.taken)
			<-k.resume
		})
	}
}

// TestKafkaKeepsAPartitionUntilItsPollIsAdded has another session join while
// the first session polls records.
func TestKafkaKeepsAPartitionUntilItsPollIsAdded(t *testing.T) {
	k := fakeKafka(t)
	hook := &kafkaTaken{taken: make(chan struct{}), resume: make(chan struct{})}
	w := k.stand(2, kafkabroker.Options{})
	ms := kafkaSpread(w.topic, 40)
	w.publish(t, ms...)
	first := kafkaOpen(t, k.broker(kafkabroker.Options{}, kgo.WithHooks(hook)).Topics(w.group, w.topic), 100)
	got := make(chan []broker.Delivery, 1)
	go func() {
		ds, _ := first.Receive(t.Context(), 100)
		got <- ds
	}()
	<-hook.taken
	second := w.open(t, 100)
	kafkaQuiet(t, second)
	close(hook.resume)
	kafkaAck(t, first, <-got...)
	w.publish(t, ms...) // into both partitions
	receive(t, second, 1)
}

// TestKafkaPollsNothingDuringASeek stops a Seek in its middle.
func TestKafkaPollsNothingDuringASeek(t *testing.T) {
	k := fakeKafka(t)
	w := k.stand(1, kafkabroker.Options{})
	w.fill(t, 3)
	s := w.open(t, 10)
	ds := receive(t, s, 3)
	asked, answer, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	k.fake.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		k.fake.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	go func() { done <- s.(broker.Seeker).Seek(t.Context(), *ds[0].Position) }()
	<-asked
	w.publish(t, &broker.Message{ID: "new", Topic: w.topic})
	kafkaQuiet(t, s)
	close(answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := ids(receive(t, s, 3)); fmt.Sprint(got) != "[m1 m2 new]" {
		t.Errorf("after the Seek came %v", got)
	}
}

// TestKafkaSeeksWhileOffsetsAreFetched seeks in a partition that is assigned
// and whose offset is not known yet.
func TestKafkaSeeksWhileOffsetsAreFetched(t *testing.T) {
	k := fakeKafka(t)
	w := k.stand(1, kafkabroker.Options{})
	w.fill(t, 9)
	s := w.open(t, 10)
	ds := receive(t, s, 9)
	kafkaAck(t, s, ds...)
	kafkaClose(t, s)

	asked, answer, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	k.fake.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		k.fake.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	s = w.open(t, 10)
	<-asked
	go func() { done <- s.(broker.Seeker).Seek(t.Context(), *ds[3].Position) }()
	select {
	case err := <-done:
		t.Errorf("Seek returned %v, before the session could know where it is", err)
		done <- err
	case <-time.After(300 * time.Millisecond):
	}
	close(answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := receive(t, s, 1); got[0].Message.ID != "m4" || !got[0].Redelivered {
		t.Errorf("after the Seek came %s, redelivered: %v", got[0].Message.ID, got[0].Redelivered)
	}
}

// TestKafkaReturnsInOrder returns messages at once.
func TestKafkaReturnsInOrder(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		w := k.stand(1, kafkabroker.Options{LargestHeld: 3})
		w.fill(t, 3)
		s := w.open(t, 10)
		ds := receive(t, s, 3)
		if err := s.Return(t.Context(), ds, 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		w.publish(t, &broker.Message{ID: "new", Topic: w.topic})
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		got, err := s.Receive(ctx, 10) // nothing new comes while as many as may be are kept
		if err != nil || fmt.Sprint(ids(got)) != "[m0 m1 m2]" || got[0].Message.Attempt != 2 {
			t.Errorf("returned messages came again as %v, %v", ids(got), err)
		}
	})
}
