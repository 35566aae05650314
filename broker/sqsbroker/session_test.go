package sqsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/internal/fakesqs"
)

// with returns the source with another visibility.
func (p *place) with(visibility time.Duration) broker.Source {
	return sqsbroker.New(p.client, &sqsbroker.Options{Visibility: visibility, Wait: time.Second}).Queue(p.queue)
}

func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel() // most of it is waiting
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			t.Parallel()
			p := startFake(t).place(t, fifo)
			p.publish(t, p.messages(1, "")...)
			holder := open(t, p.with(2*time.Second), 1)
			ds := receive(t, holder, 1)
			receiveNothing(t, open(t, p.with(2*time.Second), 10), 4500*time.Millisecond)
			must(t, holder.Ack(soon(t), ds))
			if n := p.service.Count(p.queue); n != 0 {
				t.Errorf("the queue has %d messages", n)
			}
		})
	}
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	end := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-end:
			tb.Fatal("waited in vain: " + what)
		case <-tick.C:
		}
	}
}

// hold holds the next request for messages until the end of the test. It returns
// how many there were.
func (p *place) hold(tb testing.TB) int {
	tb.Helper()
	held := make(chan struct{})
	tb.Cleanup(func() { close(held) })
	p.service.AddFault("ReceiveMessage", fakesqs.Fault{Hold: held})
	return p.service.Requests("ReceiveMessage")
}

// settlings are the ways to settle deliveries.
var settlings = map[string]func(broker.Session, context.Context, []broker.Delivery) error{
	"ack":    func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Ack(ctx, ds) },
	"return": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Return(ctx, ds, 0) },
	"reject": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error {
		return s.Reject(ctx, ds, "no use")
	},
}

// A standard queue answers that all is well when an old receipt handle is used.
// So a session that could not renew a message does not settle it.
func TestLostMessageIsNotSettled(t *testing.T) {
	t.Parallel() // most of it is waiting
	for name, settle := range settlings {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, told %v", name, told), func(t *testing.T) {
				t.Parallel()
				f := startFake(t)
				var ahead atomic.Int64
				f.service.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				p := f.place(t, false)
				p.publish(t, p.messages(1, "")...)
				stalled := open(t, p.with(2*time.Second), 1)
				ds := receive(t, stalled, 1)
				if !told {
					for range 1000 {
						p.service.AddFault("ChangeMessageVisibilityBatch", fakesqs.Fault{Code: "ServiceUnavailable"})
					}
				}
				ahead.Store(int64(3 * time.Second)) // its time is over, at the service
				if other := p.raw(t, 1, time.Minute); len(other) != 1 {
					t.Fatalf("%d messages came again", len(other))
				}
				receiveNothing(t, stalled, 2500*time.Millisecond) // its time is over here, too
				if err := settle(stalled, soon(t), ds); err == nil {
					t.Error("the delivery of another session was settled")
				}
				if p.service.Count(p.queue) != 1 || p.service.Count(p.dead) != 0 || p.service.Requests("DeleteMessageBatch") != 0 {
					t.Errorf("there are %d messages and %d dead letters after %d deletions", p.service.Count(p.queue), p.service.Count(p.dead), p.service.Requests("DeleteMessageBatch"))
				}
			})
		}
	}
}

func TestAckTellsThatMessagesOfABatchWereNotDeleted(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(3, "")...)
	s := open(t, p.source, 10)
	ds := receive(t, s, 3)
	p.service.AddFault("DeleteMessageBatch", fakesqs.Fault{Entries: map[int]string{1: "InternalError"}})
	if err := s.Ack(soon(t), ds); err == nil || !strings.Contains(err.Error(), "InternalError") {
		t.Errorf("Ack: %v", err)
	}
	if n := p.service.Count(p.queue); n != 1 {
		t.Errorf("the queue has %d messages", n)
	}
	must(t, s.Ack(soon(t), ds[1:2]))
	if n := p.service.Count(p.queue); n != 0 {
		t.Errorf("the queue has %d messages", n)
	}
}

// receiveUnless receives, and fails at once if that has become hopeless.
func receiveUnless(tb testing.TB, s broker.Session, what string, hopeless func() bool) ([]broker.Delivery, error) {
	tb.Helper()
	for {
		ctx, cancel := context.WithTimeout(soon(tb), 100*time.Millisecond)
		ds, err := s.Receive(ctx, 1)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return ds, err
		}
		if hopeless() {
			tb.Fatal(what)
		}
	}
}

// A message that could not be deleted is not hidden for as long as its session
// lasts.
func TestMessageWhoseAckFailedIsNotRenewed(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(1, "")...)
	s := open(t, p.with(2*time.Second), 1)
	ds := receive(t, s, 1)
	p.service.AddFault("DeleteMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	if err := s.Ack(soon(t), ds); err == nil {
		t.Fatal("Ack says that all is well")
	}
	renewals := p.service.Requests("ChangeMessageVisibilityBatch") // perhaps with one that was on its way
	_, err := receiveUnless(t, s, "the message is renewed", func() bool { return p.service.Requests("ChangeMessageVisibilityBatch") > renewals+1 })
	must(t, err)
}

// If a message could not be deleted, it comes again before those after it.
func TestMessageWhoseAckFailedComesAgain(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startFake(t).place(t, true)
	ms := p.messages(2, "key")
	p.publish(t, ms...)
	s := open(t, p.with(2*time.Second), 10)
	ds := receive(t, s, 1)
	p.service.AddFault("DeleteMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	if err := s.Ack(soon(t), ds); err == nil {
		t.Fatal("Ack says that all is well")
	}
	for _, m := range ms { // in order
		again := receive(t, s, 1)
		if again[0].Message.ID != m.ID {
			t.Errorf("%s came, not %s", again[0].Message.ID, m.ID)
		}
		must(t, s.Ack(soon(t), again))
	}
}

func TestRejectDeletesNothingThatIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(3, "")...)
	s := open(t, p.source, 10)
	ds := receive(t, s, 3)
	p.service.AddFault("SendMessageBatch", fakesqs.Fault{Entries: map[int]string{1: "InternalError"}})
	wantRejectToFail(t, s, ds)
	p.wantCounts(t, 1, 2)
	must(t, s.Reject(soon(t), ds[1:2], "no use"))
	p.wantCounts(t, 0, 3)
}

// The dead letter is sent first. If the deletion fails then, there are both, and
// a FIFO queue for dead letters takes the second one for a copy.
func TestRejectAgainAfterAFailedDeletion(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, true)
	p.publish(t, p.messages(1, "key")...)
	s := open(t, p.source, 10)
	ds := receive(t, s, 1)
	p.service.AddFault("DeleteMessageBatch", fakesqs.Fault{Entries: map[int]string{0: "InternalError"}})
	wantRejectToFail(t, s, ds)
	p.wantCounts(t, 1, 1)
	must(t, s.Close(soon(t)))
	s = open(t, p.source, 10)
	must(t, s.Reject(soon(t), receive(t, s, 1), "no use"))
	p.wantCounts(t, 0, 1)
}

// A dead letter that is moved back and rejected again is not taken for its copy.
func TestRedrivenMessageIsHandledAgain(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		p := startFake(t).place(t, fifo)
		m := p.messages(1, "key")[0]
		m.Header = map[string]string{"a": "b"}
		p.publish(t, m)
		s := open(t, p.source, 10)
		for range 3 {
			ds := receive(t, s, 1)
			if got := ds[0].Message; got.ID != m.ID || got.OrderingKey != m.OrderingKey || string(got.Body) != string(m.Body) || got.Header["a"] != "b" {
				t.Errorf("fifo %v: %+v came", fifo, got)
			}
			must(t, s.Reject(soon(t), ds, "no use"))
			if p.service.Count(p.queue) != 0 || p.service.Count(p.dead) != 1 {
				t.Fatalf("fifo %v: there are %d messages and %d dead letters", fifo, p.service.Count(p.queue), p.service.Count(p.dead))
			}
			_, err := p.client.StartMessageMoveTask(soon(t), &sqs.StartMessageMoveTaskInput{
				SourceArn: aws.String(p.arn(t, p.dead)), DestinationArn: aws.String(p.arn(t, p.queue))})
			must(t, err)
		}
		must(t, s.Ack(soon(t), receive(t, s, 1)))
	}
}

// A message with all attributes that SQS allows becomes a dead letter, too.
func TestDeadLetterOfAnyMessage(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	full := p.messages(2, "key")
	for i := range 20 {
		full[0].Header = map[string]string{"last": "x"}
		full[1].Header = map[string]string{}
		for j := range i {
			full[1].Header[fmt.Sprintf("h%02d", j)] = "x"
		}
	}
	full[0].Body = []byte(strings.Repeat("x", 1<<20-300)) // no room for the reason
	p.publish(t, full...)
	_, err := p.client.SendMessageBatch(soon(t), &sqs.SendMessageBatchInput{QueueUrl: p.url(t, p.queue), Entries: []types.SendMessageBatchRequestEntry{
		{Id: aws.String("0"), MessageBody: aws.String("of another program"), MessageAttributes: map[string]types.MessageAttributeValue{
			"N": {DataType: aws.String("Number"), StringValue: aws.String("7")}, "B": {DataType: aws.String("Binary"), BinaryValue: []byte{0}}}}}})
	must(t, err)
	s := open(t, p.source, 10)
	ds := receive(t, s, 3)
	slices.SortFunc(ds, func(a, b broker.Delivery) int { return len(b.Message.Body) - len(a.Message.Body) })
	foreign := ds[1].Message
	if foreign.ID != "" || foreign.Header["n"] != "7" || foreign.Header["sqs-message-id"] == "" || string(foreign.Body) != "of another program" {
		t.Errorf("the message of another program is %+v", foreign)
	}
	must(t, s.Reject(soon(t), ds, "no use"))
	for _, d := range receive(t, open(t, sqsbroker.New(p.client, nil).Queue(p.dead), 10), 3) {
		switch m := d.Message; {
		case len(m.Body) > 1000:
		case m.Header["once-reason"] != "no use" || !strings.HasPrefix(m.Header["once-origin"], p.queue+"@") || m.Header["once-topic"] != p.queue:
			t.Errorf("the dead letter %q has the headers %q", m.ID, m.Header)
		case m.ID == full[1].ID && (len(m.Header) != 3+19 || m.OrderingKey != "key"):
			t.Errorf("the dead letter is %+v", m)
		case m.ID == "" && m.Header["n"] != "7":
			t.Errorf("the dead letter of another program is %+v", m)
		}
	}
}

// A message that fails holds up those of its group that came with it, and no
// others.
func TestFailedMessageHoldsUpItsGroup(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startFake(t).place(t, true)
	a, b := p.messages(3, "a"), p.messages(1, "b")
	p.publish(t, append(slices.Clone(a), b...)...)
	s := open(t, p.source, 10)
	first := receive(t, s, 2) // the first one of each group
	if first[0].Message.ID != a[0].ID || first[1].Message.ID != b[0].ID {
		t.Fatalf("%s and %s came", first[0].Message.ID, first[1].Message.ID)
	}
	receiveNothing(t, s, 300*time.Millisecond)
	must(t, s.Return(soon(t), first[:1], time.Second))
	must(t, s.Ack(soon(t), first[1:]))
	receiveNothing(t, s, 500*time.Millisecond)
	for _, m := range a {
		ds := receive(t, s, 1)
		if ds[0].Message.ID != m.ID {
			t.Errorf("%s came, not %s", ds[0].Message.ID, m.ID)
		}
		must(t, s.Ack(soon(t), ds))
	}
}

// A client that repeats a request whose answer is lost gets the same messages of
// a FIFO queue.
func TestLostAnswerHidesNothing(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, true)
	p.publish(t, p.messages(1, "key")...)
	p.service.AddFault("ReceiveMessage", fakesqs.Fault{LoseReply: true})
	s := open(t, p.with(time.Hour), 10)
	ds, err := receiveUnless(t, s, "the message is hidden", func() bool { return p.service.Requests("ReceiveMessage") > 3 })
	must(t, err)
	must(t, s.Ack(soon(t), ds))
}

func TestCopyOfAStandardQueueIsRedelivered(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, false)
	p.publish(t, p.messages(1, "")...)
	s := open(t, p.source, 10)
	first := receive(t, s, 1)
	p.service.DeliverTwice(p.queue)
	second := receive(t, s, 1)
	if !first[0].Redelivered || !second[0].Redelivered {
		t.Error("a standard queue does not know whether it has delivered a message before")
	}
	must(t, s.Ack(soon(t), second))
	if n := p.service.Count(p.queue); n != 0 {
		t.Errorf("the queue has %d messages", n)
	}
}

// While a queue has many messages, a session does not wait for one answer before it
// asks again. While it has few, it has one request at a time, because each has its
// price.
func TestRequestsOverlapWhileBatchesAreFull(t *testing.T) {
	t.Parallel()
	p := startFake(t).place(t, true)
	var sent []*broker.Message
	for i := range 50 {
		sent = append(sent, p.messages(1, fmt.Sprint(i))...)
	}
	p.publish(t, sent...)
	answer := make(chan struct{})
	for _, f := range []fakesqs.Fault{{}, {Hold: answer}, {Hold: answer}} {
		p.service.AddFault("ReceiveMessage", f)
	}
	s := open(t, p.source, 50)
	eventually(t, "two requests at a time", func() bool { return p.service.Requests("ReceiveMessage") == 3 })
	close(answer)
	got := make(map[string]bool)
	for _, d := range receive(t, s, len(sent)) {
		got[d.Message.ID] = true
		must(t, s.Ack(soon(t), []broker.Delivery{d}))
	}
	if len(got) != len(sent) {
		t.Errorf("%d of %d messages came", len(got), len(sent))
	}
	p.hold(t)
	receiveNothing(t, s, 150*time.Millisecond) // other requests end
	held := p.service.Requests("ReceiveMessage")
	receiveNothing(t, s, 150*time.Millisecond)
	if n := p.service.Requests("ReceiveMessage"); n != held {
		t.Errorf("%d more requests while one waits for a message", n-held)
	}
}

// ends waits until a session ends, and returns its error.
func ends(tb testing.TB, s broker.Session) error {
	tb.Helper()
	for {
		_, err := s.Receive(soon(tb), 10)
		if errors.Is(err, context.DeadlineExceeded) {
			tb.Fatal("the session goes on")
		}
		if err != nil {
			return err
		}
	}
}

func TestSessionEndsLoudlyWithItsQueue(t *testing.T) {
	t.Parallel() // most of it is waiting
	t.Run("deleted", func(t *testing.T) {
		p := startFake(t).place(t, false)
		s := open(t, p.source, 10)
		_, err := p.client.DeleteQueue(soon(t), &sqs.DeleteQueueInput{QueueUrl: p.url(t, p.queue)})
		must(t, err)
		if err := ends(t, s); !strings.Contains(err.Error(), "sent again") {
			t.Errorf("the session ends with %v", err)
		}
		if _, err := p.source.Open(soon(t), 1); err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("it opens: %v", err)
		}
	})
	t.Run("made anew", func(t *testing.T) {
		f := startFake(t)
		var later atomic.Int64
		f.service.Clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		p := f.place(t, false)
		polls := p.hold(t) // so that it is not asked in between
		s := open(t, p.with(2*time.Second), 10)
		eventually(t, "a request waits", func() bool { return p.service.Requests("ReceiveMessage") > polls })
		_, err := p.client.DeleteQueue(soon(t), &sqs.DeleteQueueInput{QueueUrl: p.url(t, p.queue)})
		must(t, err)
		later.Store(int64(2 * time.Second))
		p.create(t, p.queue, nil)
		looks := p.service.Requests("GetQueueUrl")
		_, err = receiveUnless(t, s, "the session has looked twice and goes on", func() bool { return p.service.Requests("GetQueueUrl") > looks+1 })
		if err == nil || !strings.Contains(err.Error(), "made anew") {
			t.Errorf("the session ends with %v", err)
		}
	})
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	standard, fifo := f.place(t, false), f.place(t, true)
	for name, c := range map[string]struct {
		o      sqsbroker.Options
		queue  string
		window int
		advice string
	}{
		"no window":                        {sqsbroker.Options{}, standard.queue, 0, "window"},
		"a visibility of half a second":    {sqsbroker.Options{Visibility: time.Second / 2}, standard.queue, 1, "Visibility"},
		"a visibility of a day":            {sqsbroker.Options{Visibility: 24 * time.Hour}, standard.queue, 1, "Visibility"},
		"a wait of a minute":               {sqsbroker.Options{Wait: time.Minute}, standard.queue, 1, "Wait"},
		"dead letters that go back":        {sqsbroker.Options{DeadLetter: standard.queue}, standard.queue, 1, "another queue"},
		"dead letters of FIFO without it":  {sqsbroker.Options{DeadLetter: standard.dead}, fifo.queue, 1, "FIFO"},
		"a queue for dead letters missing": {sqsbroker.Options{DeadLetter: "missing"}, standard.queue, 1, "dead letters"},
		"a queue that does not exist":      {sqsbroker.Options{}, "missing", 1, "does not exist"},
	} {
		if _, err := sqsbroker.New(f.client, &c.o).Queue(c.queue).Open(soon(t), c.window); err == nil || !strings.Contains(err.Error(), c.advice) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
