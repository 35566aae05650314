package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestKafkaPublishesFromManyGoroutines(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		const goroutines, rounds = 64, 20
		w := k.stand(4, kafkabroker.Options{})
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for r := range rounds {
					id := fmt.Sprintf("%d-%d", g, r)
					ms := []*broker.Message{
						{ID: id + "a", Topic: w.topic, OrderingKey: fmt.Sprint(g)},
						{ID: id + "b", Topic: w.topic, OrderingKey: fmt.Sprint(g)},
					}
					if errs := w.p.Publish(t.Context(), ms); errs != nil {
						t.Errorf("publishing %s: %v", id, errs)
					}
				}
			})
		}
		all.Wait()
		s := w.open(t, 10_000)
		order := make(map[string][]string)
		for _, d := range receive(t, s, goroutines*rounds*2) {
			order[d.Message.OrderingKey] = append(order[d.Message.OrderingKey], d.Message.ID)
		}
		for g := range goroutines {
			var want []string
			for r := range rounds {
				want = append(want, fmt.Sprintf("%d-%da", g, r), fmt.Sprintf("%d-%db", g, r))
			}
			if got := order[fmt.Sprint(g)]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("goroutine %d: came %v", g, got)
			}
		}
	})
}

// TestKafkaStampsWithTheTimeOfSending publishes a message that is older than
// the retention of its topic.
func TestKafkaStampsWithTheTimeOfSending(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		topic, begin := k.topic(1), time.Now().Truncate(time.Millisecond)
		b := k.broker(kafkabroker.Options{})
		p := b.Publisher()
		defer p.Close()
		publish(t, p, &broker.Message{ID: "m", Topic: topic, Time: begin.AddDate(-1, 0, 0)})
		raw := k.client(kgo.ConsumeTopics(topic)).PollFetches(t.Context()).Records()
		if len(raw) != 1 || raw[0].Timestamp.Before(begin) {
			t.Errorf("the record is %+v, and was sent after %v", raw, begin)
		}
	})
}

// TestKafkaProducerWritesOnceAndInOrder fails and loses replies of produce
// requests, which the client sends again.
func TestKafkaProducerWritesOnceAndInOrder(t *testing.T) {
	for name, sabotage := range map[string]func(c *kfake.Cluster){
		"not leader": func(c *kfake.Cluster) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 3})
		},
		"written, but timed out": func(c *kfake.Cluster) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 3})
		},
		"connection cut": func(c *kfake.Cluster) {
			for range 3 {
				c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
					return nil, errors.New("cut"), true
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := fakeKafka(t)
			w := k.stand(1, kafkabroker.Options{})
			w.publish(t, &broker.Message{ID: "m", Topic: w.topic})
			sabotage(k.fake)
			ms := kafkaMessages(w.topic, 50)
			w.publish(t, ms[:25]...)
			w.publish(t, ms[25:]...)
			got := k.read(t, w.b, w.topic)[1:]
			if len(got) != len(ms) {
				t.Fatalf("%d messages were published, and %d are in the log", len(ms), len(got))
			}
			for i, m := range got {
				if m.ID != ms[i].ID {
					t.Fatalf("at %d is %s", i, m.ID)
				}
			}
		})
	}
}

// kafkaBuffered signals each record that a client has buffered.
type kafkaBuffered chan string

func (b kafkaBuffered) OnProduceRecordBuffered(r *kgo.Record) { b <- r.Topic }

// TestKafkaPublishIgnoresTheContextsOfOtherCalls ends the context of one call
// while the messages of two calls wait for the broker.
func TestKafkaPublishIgnoresTheContextsOfOtherCalls(t *testing.T) {
	k := fakeKafka(t)
	topic, buffered := k.topic(1), make(kafkaBuffered, 10)
	b := k.broker(kafkabroker.Options{}, kgo.WithHooks(buffered))
	p := b.Publisher()
	defer p.Close()
	free := make(chan struct{})
	k.fake.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.fake.SleepControl(func() { <-free })
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	body := []byte("as it was")
	mine, others := make(chan []error, 1), make(chan []error, 1)
	go func() {
		mine <- p.Publish(ctx, []*broker.Message{{ID: "a", Topic: topic, Body: body}, {ID: "b", Topic: topic, Body: body}})
	}()
	<-buffered
	<-buffered
	go func() { others <- p.Publish(t.Context(), []*broker.Message{{ID: "other", Topic: topic}}) }()
	<-buffered
	cancel()
	errs := <-mine
	if len(errs) != 2 || !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) {
		t.Errorf("after its context ended, Publish said %v", errs)
	}
	copy(body, "scribbled")
	close(free)
	if errs := <-others; errs != nil {
		t.Errorf("Publish of another caller said %v", errs)
	}
	for _, m := range k.read(t, b, topic) {
		if m.ID != "other" && string(m.Body) != "as it was" {
			t.Errorf("%s has the body %q, which was written after Publish returned", m.ID, m.Body)
		}
	}
}

func TestKafkaPublishErrorsSayWhatToDo(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		topic := k.topic(1)
		b := k.broker(kafkabroker.Options{}, kgo.ProducerBatchMaxBytes(10_000))
		p := b.Publisher()
		nowhere := k.name("nowhere")
		ms := []*broker.Message{
			{ID: "big", Topic: topic, Body: make([]byte, 20_000)}, {ID: "name", Topic: "no topic"},
			{ID: "nowhere", Topic: nowhere}, {Topic: topic}, nil, {ID: "good", Topic: topic},
		}
		errs := p.Publish(t.Context(), ms)
		for i, invalid := range []bool{true, true, false, true, true} {
			if errs[i] == nil || errors.Is(errs[i], broker.ErrInvalid) != invalid {
				t.Errorf("message %d: %v; want ErrInvalid: %v", i, errs[i], invalid)
			}
		}
		if errs[5] != nil {
			t.Errorf("a good message among bad ones: %v", errs[5])
		}
		k.create(nowhere, 1)
		proof.Await(t, "the topic is found once it exists", func() bool { return p.Publish(t.Context(), ms[2:3]) == nil })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if errs := p.Publish(t.Context(), ms[5:]); errs == nil {
			t.Error("Publish after Close is no error")
		}
	})
}

// TestKafkaKeepsAMessageThatCannotBeRejected has a dead-letter topic that does
// not exist yet.
func TestKafkaKeepsAMessageThatCannotBeRejected(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		topic, dead, group := k.topic(1), k.name("dead"), k.name("group")
		b := k.broker(kafkabroker.Options{DeadLetter: dead})
		p := b.Publisher()
		defer p.Close()
		publish(t, p, &broker.Message{ID: "bad", Topic: topic, OrderingKey: "k", Time: time.Unix(9, 0),
			Header: map[string]string{"a": "b"}})
		s := kafkaOpen(t, b.Topics(group, topic), 10)
		ds := receive(t, s, 1)
		if err := s.Reject(t.Context(), ds, "why\nnot"); err == nil {
			t.Fatal("Reject to a topic that does not exist is no error")
		}
		k.create(dead, 1)
		proof.Await(t, "the message comes again, and is rejected", func() bool {
			ds := receive(t, s, 1)
			if ds[0].Message.Attempt < 2 || !ds[0].Redelivered {
				t.Errorf("it came again as %+v", ds[0].Message)
			}
			return s.Reject(t.Context(), ds, "why\nnot") == nil
		})
		kafkaClose(t, s)
		if offset, _ := k.committed(t, group, topic, 0); offset != 1 {
			t.Errorf("committed is %d", offset)
		}
		m := k.read(t, b, dead)[0]
		if m.ID != "bad" || m.OrderingKey != "k" || m.Header["a"] != "b" || m.Header["once-reason"] != "why not" ||
			m.Header["once-origin"] != topic+"/0@0" || !m.Time.Equal(time.Unix(9, 0)) {
			t.Errorf("the dead letter is %+v", m)
		}
	})
}
