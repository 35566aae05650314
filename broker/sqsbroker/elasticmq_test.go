package sqsbroker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/internal/testenv"
)

// dialElasticMQ returns an imitation of SQS that others have written.
func dialElasticMQ(t *testing.T) *fake {
	f := new(fake)
	f.dial(testenv.SQS(t))
	f.names.Store(time.Now().UnixNano())
	return f
}

func TestConformanceOnElasticMQ(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			f := dialElasticMQ(t)
			brokertest.Run(t, brokertest.Harness{
				Fresh: func(tb testing.TB) brokertest.Place {
					h := f.place(tb, fifo).harnessPlace()
					h.MaxBody = topicBody
					return h
				},
				Confirms: true,
			})
		})
	}
}

// TestElasticMQ shows that ElasticMQ 1.6.14 does what the tests with fakesqs take
// for granted: a deduplication ID outlives its message, a message in flight holds
// up its group, and an old receipt handle deletes nothing.
//
// It has no SNS, and accepts what the service refuses: it hides a message whose
// time is over, hides one for more than 12 hours, and tells no retention period.
// It refuses more than 256 KiB. Tests of these use fakesqs alone.
func TestElasticMQ(t *testing.T) {
	t.Parallel()
	f := dialElasticMQ(t)
	p := f.place(t, true)
	ms := p.messages(3, "key")
	p.publish(t, ms...)
	first := p.raw(t, 1, time.Minute)
	if blocked := p.raw(t, 10, time.Minute); len(first) != 1 || len(blocked) != 0 {
		t.Fatalf("%d messages came, and then %d of their group", len(first), len(blocked))
	}
	p.delete(t, first[0])
	p.publish(t, ms[0])
	if rest := p.raw(t, 10, time.Minute); len(rest) != 2 {
		t.Errorf("%d of two messages came, after a third one was deleted and sent again", len(rest))
	}
	for _, fifo := range []bool{false, true} {
		p := f.place(t, fifo)
		p.publish(t, p.messages(1, "")...)
		old := p.raw(t, 1, time.Second)
		var fresh []types.Message
		eventually(t, "the message comes again", func() bool {
			fresh = p.raw(t, 1, time.Second)
			return len(fresh) > 0
		})
		_, _ = f.client.DeleteMessage(soon(t), &sqs.DeleteMessageInput{QueueUrl: p.url(t, p.queue), ReceiptHandle: old[0].ReceiptHandle}) // may be refused
		eventually(t, "the message is still there", func() bool { return len(p.raw(t, 1, time.Second)) > 0 })
	}
}

// raw receives messages without a session.
func (p *place) raw(tb testing.TB, limit int32, visibility time.Duration) []types.Message {
	tb.Helper()
	out, err := p.client.ReceiveMessage(soon(tb), &sqs.ReceiveMessageInput{QueueUrl: p.url(tb, p.queue), MaxNumberOfMessages: limit,
		VisibilityTimeout: int32(visibility / time.Second)})
	must(tb, err)
	return out.Messages
}

func (p *place) delete(tb testing.TB, m types.Message) {
	tb.Helper()
	_, err := p.client.DeleteMessage(soon(tb), &sqs.DeleteMessageInput{QueueUrl: p.url(tb, p.queue), ReceiptHandle: m.ReceiptHandle})
	must(tb, err)
}
