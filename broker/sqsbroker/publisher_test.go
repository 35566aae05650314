package sqsbroker_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/internal/fakesqs"
)

func TestPublisherTellsWhichMessagesOfABatchFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    string
		sender  bool
		invalid bool
	}{
		{"InternalError", false, false},
		{"InvalidMessageContents", true, true},
		{"KmsAccessDenied", true, false}, // a right may be given
	} {
		p := startFake(t).place(t, false)
		p.service.AddFault("SendMessageBatch", fakesqs.Fault{Entries: map[int]string{1: c.code}, Sender: c.sender})
		errs := p.publisher.Publish(soon(t), p.messages(3, ""))
		if len(errs) != 3 || errs[0] != nil || errs[1] == nil || errs[2] != nil || errors.Is(errs[1], broker.ErrInvalid) != c.invalid {
			t.Errorf("%s: %v", c.code, errs)
		}
		if n := p.service.Count(p.queue); n != 2 {
			t.Errorf("%s: the queue has %d messages", c.code, n)
		}
		if n := p.service.Requests("SendMessageBatch"); n != 1 {
			t.Errorf("%s: %d requests", c.code, n)
		}
	}
}

// A message must not pass an earlier one of its ordering key that has failed.
func TestPublisherSendsNothingAfterAFailureOfItsKey(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, true)
	ms := append(p.messages(3, "a"), p.messages(2, "b")...)
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	errs := p.publisher.Publish(soon(t), ms)
	for i, err := range errs {
		if failed := i < 3; failed != (err != nil) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if n := p.service.Count(p.queue); len(errs) != len(ms) || n != 2 {
		t.Errorf("the queue has %d messages", n)
	}
}

// One message that the service refuses does not hold up its batch.
func TestPublisherSendsABatchOneByOneIfItIsRefused(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"InvalidParameterValue", "BatchRequestTooLong"} {
		p := startFake(t).place(t, false)
		p.service.AddFault("SendMessageBatch", fakesqs.Fault{Code: code, Sender: true})
		p.service.AddFault("SendMessageBatch", fakesqs.Fault{Code: code, Sender: true})
		errs := p.publisher.Publish(soon(t), p.messages(3, ""))
		if len(errs) != 3 || !errors.Is(errs[0], broker.ErrInvalid) || errs[1] != nil || errs[2] != nil {
			t.Errorf("%s: the errors are %v", code, errs)
		}
		if n := p.service.Requests("SendMessageBatch"); n != 4 {
			t.Errorf("%s: %d requests", code, n)
		}
	}
}

// A FIFO queue drops the copy that the client sends after a lost reply, also if
// the message has been deleted meanwhile.
func TestDeduplicationIDIsTheMessages(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, true)
	ms := p.messages(2, "key")
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{LoseReply: true})
	p.publish(t, ms[0])
	if n := p.service.Count(p.queue); n != 1 || p.service.Requests("SendMessageBatch") != 2 {
		t.Fatalf("the queue has %d messages after %d requests", n, p.service.Requests("SendMessageBatch"))
	}
	s := open(t, p.source, 10)
	must(t, s.Ack(soon(t), receive(t, s, 1)))
	p.publish(t, ms...)
	if ds := receive(t, s, 1); ds[0].Message.ID != ms[1].ID {
		t.Errorf("%s came", ds[0].Message.ID)
	}
}

func TestPublisherRefusesWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	standard, fifo := f.place(t, false), f.place(t, true)
	strict := sqsbroker.New(f.client, nil).Publisher()
	topics := sqsbroker.NewSNSPublisher(f.topics, topicPrefix, nil)
	nowhere := sqsbroker.NewSNSPublisher(f.topics, "", nil)
	elsewhere := sqsbroker.NewSNSPublisher(f.topics, "arn:aws:sns:us-east-1:"+fakesqs.Account+":", nil)
	f.service.CreateTopic("orders")
	for name, c := range map[string]struct {
		to      broker.Publisher
		m       broker.Message
		invalid bool
		advice  string
	}{
		"an ordering key on a standard queue": {strict, broker.Message{ID: "1", Topic: standard.queue, OrderingKey: "k"}, true, "FIFO"},
		"an ordering key on a standard topic": {topics, broker.Message{ID: "1", Topic: "orders", OrderingKey: "k"}, true, "FIFO"},
		"a body over 1 MiB":                   {strict, broker.Message{ID: "1", Topic: fifo.queue, Body: bytes.Repeat([]byte("x"), 1<<20)}, true, "reference"},
		"headers over 1 MiB":                  {strict, broker.Message{ID: "1", Topic: fifo.queue, Header: map[string]string{"x": strings.Repeat("x", 1<<20)}}, true, "reference"},
		"a body over 256 KiB through a topic": {topics, broker.Message{ID: "1", Topic: "orders", Body: bytes.Repeat([]byte("x"), 256<<10)}, true, "reference"},
		"a queue that does not exist":         {strict, broker.Message{ID: "1", Topic: "missing"}, false, "does not exist"},
		"a topic that does not exist":         {topics, broker.Message{ID: "1", Topic: "missing"}, false, "does not exist"},
		"a topic of another region":           {elsewhere, broker.Message{ID: "1", Topic: "orders"}, false, "region"},
		"a topic without an ARN":              {nowhere, broker.Message{ID: "1", Topic: "orders"}, false, "prefix"},
	} {
		errs := c.to.Publish(soon(t), []*broker.Message{&c.m})
		if len(errs) != 1 || errors.Is(errs[0], broker.ErrInvalid) != c.invalid || !strings.Contains(fmt.Sprint(errs[0]), c.advice) {
			t.Errorf("%s: %.300v", name, errs)
		}
	}
	if n := f.service.Requests("SendMessageBatch") + f.service.Requests("PublishBatch"); n != 2 { // for the topics that do not exist
		t.Errorf("%d requests were sent", n)
	}
}
