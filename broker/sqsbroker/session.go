package sqsbroker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/effectively-once/once/internal/turn"
)

const (
	// hideLimit is how long SQS hides a message in all after it was received.
	hideLimit = 12 * time.Hour

	// hideMargin is how much earlier a session stops, because its clock and that
	// of the service do not start at the same moment.
	hideMargin = time.Minute

	// longestDelay leaves time for a handler that runs before its message is
	// returned.
	longestDelay = 11 * time.Hour

	// pollMargin is how much longer than its poll a receive may take.
	pollMargin = 10 * time.Second

	// maxPolls is how many requests for messages a session has at a time, while
	// there are enough messages.
	maxPolls = 6
)

var errClosed = errors.New("sqsbroker: the session is closed")

// arrival is a message that this session has received. The Tag of a delivery
// points to it.
type arrival struct {
	message  types.Message
	group    string    // of a FIFO queue; otherwise empty
	received time.Time // not later than the service has hidden it
	until    time.Time // when it may come again; not later than the service shows it
	settling bool      // it is being deleted, or has failed to be: it is not renewed
	rejected bool      // it has failed to be a dead letter: it is renewed only when that is tried again
	dead     bool      // its dead letter is stored
}

func (a *arrival) handle() *string { return a.message.ReceiptHandle }

// latest returns when the service shows the message at the latest.
func (a *arrival) latest() time.Time { return a.received.Add(hideLimit - hideMargin) }

// session is a consumer of a queue. It receives messages ahead, as many as fit
// into the window.
type session struct {
	*source
	client     *sqs.Client
	visibility time.Duration
	is         facts // of the queue, when the session was opened
	deadURL    string
	window     int

	wake   chan struct{} // wakes Receive
	room   chan struct{} // wakes the pump
	pumped chan struct{} // closed when the pump has ended
	kept   chan struct{} // closed when messages are no longer renewed

	ending      context.Context // ends when the session fails or is closed
	end         context.CancelFunc
	polling     context.Context // of the pump, which goes on a little longer
	stopPolling context.CancelFunc

	// renewing is held while messages are renewed or returned, so that none is
	// renewed after it was returned, which would change its delay. A request that
	// holds it gives up in time for the next renewal.
	renewing turn.Turn

	mu      sync.Mutex
	all     map[*arrival]bool   // unsettled, with those that wait
	waiting []*arrival          // those that Receive has not returned yet
	polls   int                 // requests for messages that are not answered
	asked   int                 // messages that they may bring
	most    int                 // how many requests there may be at a time
	out     map[string]*arrival // by group: the one that Receive has returned
	broken  error
	closed  bool
}

var (
	_ broker.DeadLetterer = (*session)(nil)
	_ broker.Delayer      = (*session)(nil)
)

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return wake.Receive(ctx, limit, s.wake, s.take)
}

// take returns up to limit messages that have arrived: of a group one at a time,
// so that a message that fails holds up those after it.
func (s *session) take(limit int) (ds []broker.Delivery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	s.dropExpired(time.Now())
	var left []*arrival
	for _, a := range s.waiting {
		if len(ds) == limit || a.group != "" && s.out[a.group] != nil {
			left = append(left, a)
			continue
		}
		if a.group != "" {
			s.out[a.group] = a
		}
		ds = append(ds, s.deliver(a))
	}
	s.waiting = left
	return ds, nil
}

// deliver returns a message as a delivery. A standard queue may deliver a message
// again without counting that.
func (s *session) deliver(a *arrival) broker.Delivery {
	m := decode(s.queue, &a.message)
	return broker.Delivery{Message: m, Redelivered: !s.is.fifo || m.Attempt != 1, Origin: s.queue + "@" + aws.ToString(a.message.MessageId), Tag: a}
}

// pump receives messages until the session ends.
func (s *session) pump() {
	defer close(s.pumped)
	var polls sync.WaitGroup
	defer polls.Wait()
	for {
		n := s.awaitRoom()
		if n == 0 {
			return
		}
		polls.Add(1)
		go func() {
			defer polls.Done()
			if err := s.poll(n); err != nil {
				s.fail(s.explain(err))
			}
		}()
	}
}

// awaitRoom waits until the session may ask for messages, and reserves places of
// the window for up to ten. It returns 0 when the session ends.
func (s *session) awaitRoom() int {
	return wake.Await(s.ending.Done(), s.room, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := min(s.window-len(s.all)-s.asked, maxEntries)
		if n < 1 || s.polls >= s.most || s.polls > 0 && n < maxEntries { // requests for less cost as much
			return 0
		}
		s.polls++
		s.asked += n
		return n
	})
}

// answered ends a request for n messages that has got some. While as many come as
// were asked for, the next requests do not wait for one another. A FIFO queue
// delivers nothing of a group while earlier messages of it are out, so that they
// do not overtake each other. The mutex is held.
func (s *session) answered(n, got int) {
	s.polls--
	s.asked -= n
	switch {
	case got == n:
		s.most = min(2*s.most, maxPolls)
	case got > 0:
		s.most = max(s.most/2, 1)
	default:
		s.most = 1
	}
	wake.Signal(s.room)
}

// pollTime is how long the service waits for a message. It is short enough that
// most of the visibility is left even to a message that came with the answer.
func (s *session) pollTime() time.Duration {
	return max(min(s.visibility/3, s.broker.options.Wait).Truncate(time.Second), time.Second)
}

// poll receives up to n messages.
func (s *session) poll(n int) error {
	ctx, cancel := context.WithTimeout(s.polling, s.pollTime()+pollMargin)
	defer cancel()
	in := &sqs.ReceiveMessageInput{
		QueueUrl: &s.is.url, MaxNumberOfMessages: int32(n), VisibilityTimeout: seconds(s.visibility), WaitTimeSeconds: seconds(s.pollTime()),
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}
	if s.is.fifo { // the client repeats a request whose answer is lost, and gets the same messages
		in.ReceiveRequestAttemptId = aws.String(rand.Text())
	}
	asked := time.Now()
	out, err := s.client.ReceiveMessage(ctx, in)
	if err != nil {
		return err
	}
	s.add(asked, n, out.Messages)
	return nil
}

// seconds rounds a time up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// add adds the messages of a request for n that was made at some time.
func (s *session) add(asked time.Time, n int, messages []types.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered(n, len(messages))
	for _, m := range messages {
		a := &arrival{message: m, received: asked, until: asked.Add(s.visibility)}
		if s.is.fifo {
			a.group = m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
		}
		s.all[a] = true
		s.waiting = append(s.waiting, a)
	}
	wake.Signal(s.wake)
}

// keep renews messages and checks the queue until the session ends.
func (s *session) keep(renewal, identity *time.Ticker) {
	defer close(s.kept)
	defer renewal.Stop()
	defer identity.Stop()
	for {
		select {
		case <-s.ending.Done():
			return
		case <-renewal.C:
			s.renew()
		case <-identity.C:
			s.identify()
		}
	}
}

// identify ends the session if the queue is another one of the same name. If the
// service does not answer, that is found out the next time.
func (s *session) identify() {
	ctx, cancel := context.WithTimeout(s.ending, min(openTime, s.requestTime())) // renewals wait for it
	defer cancel()
	is, err := s.look(ctx)
	switch {
	case isGone(err):
		s.fail(err)
	case err == nil && (is.created != s.is.created || is.arn != s.is.arn):
		s.fail(s.explain(errRecreated))
	}
}

// renew hides all messages for longer. If the service does not answer, it tries
// again with the next tick, until they have come to their end.
func (s *session) renew() {
	ctx, cancel := context.WithTimeout(s.ending, s.requestTime())
	defer cancel()
	s.mu.Lock()
	s.dropExpired(time.Now())
	as := slices.SortedFunc(maps.Keys(s.all), func(a, b *arrival) int { return a.until.Compare(b.until) })
	as = slices.DeleteFunc(as, func(a *arrival) bool { return a.rejected })
	s.mu.Unlock()
	for page := range slices.Chunk(as, maxEntries) {
		if _, err := s.renewPage(ctx, page); err != nil {
			if isGone(err) {
				s.fail(s.explain(err))
			}
			return
		}
	}
}

// renewPage hides up to ten messages for longer, and returns those that this
// session still has. It drops those that it has lost.
func (s *session) renewPage(ctx context.Context, page []*arrival) (kept []*arrival, err error) {
	if err := s.renewing.Take(ctx); err != nil {
		return nil, err
	}
	defer s.renewing.Give()
	ctx, cancel := context.WithTimeout(ctx, s.requestTime())
	defer cancel()
	asked := time.Now()
	until := make(map[*arrival]time.Time, len(page))
	page = s.stillOwned(page)
	lost, err := s.hide(ctx, page, func(a *arrival) time.Duration {
		d := min(s.visibility, a.latest().Sub(asked).Truncate(time.Second))
		until[a] = asked.Add(d)
		return max(d, 0)
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range page {
		switch {
		case lost[a] == nil:
			a.until = until[a]
			kept = append(kept, a)
		case isLost(lost[a]) && s.all[a] && !a.settling: // otherwise it is perhaps deleted
			s.lose(a)
		}
	}
	return kept, nil
}

// requestTime is how long a request may take that renewals wait for.
func (s *session) requestTime() time.Duration { return s.visibility / 3 }

// stillOwned returns those messages that are unsettled and not being deleted.
func (s *session) stillOwned(as []*arrival) []*arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(as), func(a *arrival) bool { return !s.all[a] || a.settling })
}

// refusal is the answer of the service for one message of a batch.
type refusal struct {
	code, text string
	sender     bool
}

func (r *refusal) Error() string { return r.code + ": " + r.text }

// isLost reports whether an answer says that a receipt handle is of no use any
// more: the time of the message is over, or another session has it.
func isLost(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.sender && !strings.Contains(r.code, "Throttl") && !strings.Contains(r.code, "AccessDenied")
}

// hide hides up to ten messages, each for a time, and returns the errors of
// single ones.
func (s *session) hide(ctx context.Context, as []*arrival, how func(*arrival) time.Duration) (map[*arrival]error, error) {
	if len(as) == 0 {
		return nil, nil
	}
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.is.url}
	for i, a := range as {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: a.handle(),
			VisibilityTimeout: seconds(how(a))})
	}
	out, err := s.client.ChangeMessageVisibilityBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	var done []*string
	for _, e := range out.Successful {
		done = append(done, e.Id)
	}
	return outcomes(as, done, out.Failed), nil
}

// outcomes returns the errors of the messages of a batch. One without an answer
// has an error.
func outcomes(as []*arrival, done []*string, failed []types.BatchResultErrorEntry) map[*arrival]error {
	errs := make(map[*arrival]error)
	for _, a := range as {
		errs[a] = errUnanswered
	}
	for _, id := range done {
		if i, err := strconv.Atoi(aws.ToString(id)); err == nil && i >= 0 && i < len(as) {
			delete(errs, as[i])
		}
	}
	for _, e := range failed {
		if i, err := strconv.Atoi(aws.ToString(e.Id)); err == nil && i >= 0 && i < len(as) {
			errs[as[i]] = &refusal{aws.ToString(e.Code), aws.ToString(e.Message), e.SenderFault}
		}
	}
	return errs
}

// dropExpired drops the messages whose time is over. The mutex is held.
func (s *session) dropExpired(now time.Time) {
	for a := range s.all {
		if !now.Before(a.until) {
			s.lose(a)
		}
	}
}

// lose drops a message that comes again, here or elsewhere, and those after it in
// its group, which must not come before it. The mutex is held.
func (s *session) lose(a *arrival) {
	s.drop(a)
	for _, later := range s.followers(a) {
		s.drop(later)
	}
}

// followers returns the messages of a group that wait for one of its messages.
// The mutex is held.
func (s *session) followers(of *arrival) (as []*arrival) {
	for _, a := range s.waiting {
		if of.group != "" && a.group == of.group {
			as = append(as, a)
		}
	}
	return as
}

// drop removes a message from the window. The mutex is held.
func (s *session) drop(a *arrival) {
	delete(s.all, a)
	if s.out[a.group] == a {
		delete(s.out, a.group)
	}
	if i := slices.Index(s.waiting, a); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	wake.Signal(s.room)
	wake.Signal(s.wake)
}

// fail ends the session with the error of the first call.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return
	}
	s.broken = err
	s.end()
	wake.Signal(s.wake)
}

// Close returns all unsettled messages, which then come again at once. If the
// service cannot be reached, they come again when their time is over.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.fail(errClosed)
	s.endPoll(ctx)
	<-s.kept
	s.mu.Lock()
	as := slices.Collect(maps.Keys(s.all))
	clear(s.all)
	s.waiting = nil
	s.mu.Unlock()
	err := s.show(ctx, as)
	if isGone(err) {
		err = nil // there is nothing to return
	}
	if err != nil {
		return fmt.Errorf("sqsbroker: %s: return unsettled messages: %w", s.Name(), err)
	}
	return nil
}

// endPoll waits for the answer of the last poll. If it were cut off, the service
// might still answer it, with messages that nobody gets and that stay hidden.
func (s *session) endPoll(ctx context.Context) {
	defer s.stopPolling()
	select {
	case <-s.pumped:
	case <-ctx.Done():
		s.stopPolling()
		<-s.pumped
	}
}

// show lets messages come again at once. Those that were lost need nothing.
func (s *session) show(ctx context.Context, as []*arrival) error {
	for page := range slices.Chunk(as, maxEntries) {
		errs, err := s.giveBack(ctx, page, func(*arrival) time.Duration { return 0 })
		for _, failed := range errs {
			if !isLost(failed) {
				err = failed
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// giveBack hides up to ten messages that this session no longer renews.
func (s *session) giveBack(ctx context.Context, page []*arrival, how func(*arrival) time.Duration) (map[*arrival]error, error) {
	if err := s.renewing.Take(ctx); err != nil { // a renewal that is on its way would change the time
		return nil, err
	}
	defer s.renewing.Give()
	ctx, cancel := context.WithTimeout(ctx, s.requestTime())
	defer cancel()
	return s.hide(ctx, page, how)
}
