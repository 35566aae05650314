package sqsbroker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/fakesqs"
)

// Another program may write attributes of this package that the package would not
// write. Such a message becomes a dead letter, and does not hold up others.
func TestDeadLetterOfAMalformedMessage(t *testing.T) {
	t.Parallel()
	text := func(s string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
	}
	for _, headers := range []string{
		`{"":"x"}`, `{"A b":"x"}`, `{"a\u0000":"x"}`, `{"` + strings.Repeat("a", 300) + `":"x"}`, `{"a":"\u0000"}`, `{"Ä":"\ud800"}`, `{"ONCE-ID":"x"}`, `[]`, `{`,
	} {
		p := startFake(t).place(t, false)
		p.publish(t, p.messages(1, "")...)
		_, err := p.client.SendMessageBatch(soon(t), &sqs.SendMessageBatchInput{QueueUrl: p.url(t, p.queue), Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("0"), MessageBody: aws.String("x"), MessageAttributes: map[string]types.MessageAttributeValue{"once-id": text("1"), "once-headers": text(headers)}}}})
		must(t, err)
		s := open(t, p.source, 10)
		if err := s.Reject(soon(t), receive(t, s, 2), "no use"); err != nil {
			t.Errorf("%.40s: %v", headers, err)
		}
		if p.service.Count(p.queue) != 0 || p.service.Count(p.dead) != 2 {
			t.Errorf("%.40s: there are %d messages and %d dead letters", headers, p.service.Count(p.queue), p.service.Count(p.dead))
		}
	}
}

// A dead letter that the queue refuses does not hold up those of its batch.
func TestRefusedBatchOfDeadLettersIsSentOneByOne(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(3, "")...)
	s := open(t, p.source, 10)
	ds := receive(t, s, 3)
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{Code: "InvalidParameterValue", Sender: true})
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{Code: "InvalidParameterValue", Sender: true})
	wantRejectToFail(t, s, ds)
	p.wantCounts(t, 1, 2)
}

// A consumer rejects again what it could not reject. If the dead letter is stored
// already, only the deletion is left.
func TestRejectAgainSendsNoSecondDeadLetter(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(1, "")...)
	s := open(t, p.source, 10)
	ds := receive(t, s, 1)
	p.service.AddFault("DeleteMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	wantRejectToFail(t, s, ds)
	must(t, s.Reject(soon(t), ds, "no use"))
	p.wantCounts(t, 0, 1)
}

// A message whose dead letter could not be sent does not hold up its group for as
// long as its session lasts.
func TestMessageWithoutADeadLetterIsNotRenewed(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startFake(t).place(t, true)
	p.publish(t, p.messages(1, "key")...)
	s := open(t, p.with(2*time.Second), 1)
	ds := receive(t, s, 1)
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	wantRejectToFail(t, s, ds)
	renewals := p.service.Requests("ChangeMessageVisibilityBatch") // perhaps with one that was on its way
	ds, err := receiveUnless(t, s, "the message is renewed", func() bool { return p.service.Requests("ChangeMessageVisibilityBatch") > renewals+1 })
	must(t, err)
	must(t, s.Reject(soon(t), ds, "no use"))
}

// The service refuses to renew a message that was deleted just before. That says
// nothing about those after it in its group.
func TestAckDuringARenewalDropsNoLaterMessages(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startFake(t).place(t, true)
	p.publish(t, p.messages(3, "key")...)
	release := make(chan struct{})
	p.service.AddFault("ChangeMessageVisibilityBatch", fakesqs.Fault{Hold: release})
	s := open(t, p.with(6*time.Second), 10)
	first := receive(t, s, 1)
	eventually(t, "the messages are renewed", func() bool { return p.service.Requests("ChangeMessageVisibilityBatch") > 0 })
	must(t, s.Ack(soon(t), first))
	second := receive(t, s, 1)
	close(release)
	eventually(t, "they are renewed again", func() bool { return p.service.Requests("ChangeMessageVisibilityBatch") > 1 })
	must(t, s.Ack(soon(t), second))
	third := receive(t, s, 1)
	if third[0].Message.Attempt != 1 {
		t.Errorf("the third message came %d times", third[0].Message.Attempt)
	}
	must(t, s.Ack(soon(t), third))
}

// A request that gets no answer does not keep the messages of the session from
// being renewed.
func TestRequestWithoutAnAnswerHoldsUpNoRenewal(t *testing.T) {
	t.Parallel() // most of it is waiting
	for action, ask := range map[string]func(*place, broker.Session, []broker.Delivery){
		"ChangeMessageVisibilityBatch": func(_ *place, s broker.Session, ds []broker.Delivery) {
			_ = s.Return(context.Background(), ds, time.Hour)
		},
		"GetQueueUrl": func(p *place, _ broker.Session, _ []broker.Delivery) { // the session asks from time to time
			asked := p.service.Requests("GetQueueUrl")
			eventually(t, "the queue is looked up", func() bool { return p.service.Requests("GetQueueUrl") > asked })
		},
	} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			p := startFake(t).place(t, false)
			p.publish(t, p.messages(2, "")...)
			s := open(t, p.with(2*time.Second), 2)
			ds, url := receive(t, s, 2), p.url(t, p.queue)
			held, done := make(chan struct{}), make(chan struct{})
			asked := p.service.Requests(action)
			p.service.AddFault(action, fakesqs.Fault{Hold: held})
			go func() {
				defer close(done)
				ask(p, s, ds[:1])
			}()
			defer func() { close(held); <-done }()
			eventually(t, "a request waits", func() bool { return p.service.Requests(action) > asked })
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
				out, err := p.client.ReceiveMessage(soon(t), &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: 1, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"}})
				must(t, err)
				for _, m := range out.Messages {
					if aws.ToString(m.MessageAttributes["once-id"].StringValue) == ds[1].Message.ID {
						t.Fatal("a message has come again that its session was to renew")
					}
				}
			}
			must(t, s.Ack(soon(t), ds[1:]))
		})
	}
}
