package webhookbroker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// lines is a format with a message for each line of the body.
var lines = Custom(func(_ *http.Request, body []byte) (ms []*broker.Message, err error) {
	for line := range strings.Lines(string(body)) {
		ms = append(ms, &broker.Message{ID: strings.TrimSpace(line), Topic: "t"})
	}
	return ms, nil
})

func opened(tb testing.TB, rc *Receiver) broker.Session {
	tb.Helper()
	s, err := rc.Open(context.Background(), 100)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// get receives n deliveries.
func get(tb testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for len(ds) < n {
		more, err := s.Receive(ctx, n-len(ds))
		if err != nil {
			tb.Fatal(err)
		}
		ds = append(ds, more...)
	}
	return ds
}

// posting sends a request and returns where its answer comes.
func posting(rc *Receiver, body string) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- post(rc, body) }()
	return answer
}

func settled(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

func TestAnswersFollowTheSettlement(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{})
	if w := post(rc, "1"); w.Code != 503 || w.Header().Get("Retry-After") != "5" {
		t.Errorf("without a consumer: %d %v", w.Code, w.Header())
	}
	s := opened(t, rc)
	for what, test := range map[string]struct {
		settle func([]broker.Delivery) error
		status int
		after  string
	}{
		"ack":              {func(ds []broker.Delivery) error { return s.Ack(t.Context(), ds) }, 204, ""},
		"return":           {func(ds []broker.Delivery) error { return s.Return(t.Context(), ds, 0) }, 503, "5"},
		"return for a bit": {func(ds []broker.Delivery) error { return s.Return(t.Context(), ds, 90500*time.Millisecond) }, 503, "91"},
		"reject":           {func(ds []broker.Delivery) error { return s.Reject(t.Context(), ds, "no use") }, 204, ""},
	} {
		answer := posting(rc, "1")
		ds := get(t, s, 1)
		select {
		case w := <-answer:
			t.Errorf("%s: answered %d before it was settled", what, w.Code)
		default:
		}
		settled(t, test.settle(ds))
		if w := <-answer; w.Code != test.status || w.Header().Get("Retry-After") != test.after {
			t.Errorf("%s: %d %v", what, w.Code, w.Header())
		}
		if !ds[0].Redelivered {
			t.Errorf("%s: the delivery promises to be the first", what)
		}
	}
}

// The sender repeats a batch if one of its messages failed. By then the others
// are finished, so that the repetition finds them done.
func TestABatchFailsAfterAllItsMessages(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{})
	s := opened(t, rc)
	answer := posting(rc, "1\n2\n3\n")
	ds := get(t, s, 3)
	settled(t, s.Return(t.Context(), ds[1:2], time.Minute))
	settled(t, s.Ack(t.Context(), ds[:1]))
	select {
	case w := <-answer:
		t.Fatalf("answered %d while a message is being handled", w.Code)
	default:
	}
	settled(t, s.Ack(t.Context(), ds[2:]))
	if w := <-answer; w.Code != 503 || w.Header().Get("Retry-After") != "60" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	again := posting(rc, "1\n2\n3\n")
	settled(t, s.Ack(t.Context(), get(t, s, 3)))
	if w := <-again; w.Code != 204 {
		t.Errorf("the repetition: %d", w.Code)
	}
}

func TestLimitsOfARequest(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{MaxBody: 10, MaxEvents: 3})
	came := consume(t, rc)
	want(t, "ten bytes", post(rc, "0123456789"), 204, came)
	want(t, "eleven", post(rc, "0123456789a"), 413, came)
	want(t, "four events", post(rc, "1\n2\n3\n4\n"), 413, came)
	chunked := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("0123456789"), strings.NewReader("a")))
	chunked.ContentLength = -1
	w := httptest.NewRecorder()
	rc.ServeHTTP(w, chunked)
	want(t, "eleven of unknown length", w, 413, came)
	want(t, "a message without an ID", post(rc, "\n"), 400, came)
}

// Requests above the backlog are refused at once, and those in it are handled.
func TestBacklog(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{Backlog: 2})
	s := opened(t, rc)
	var answers []<-chan *httptest.ResponseRecorder
	for i := range 2 {
		answers = append(answers, posting(rc, fmt.Sprint(i)))
		if err := rc.mu.WaitUntil(t.Context(), func() bool { return rc.buffer.Next() == int64(i+1) }); err != nil {
			t.Fatal(err)
		}
	}
	if w := post(rc, "2"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	settled(t, s.Ack(t.Context(), get(t, s, 2)))
	for _, answer := range answers {
		if w := <-answer; w.Code != 204 {
			t.Errorf("%d", w.Code)
		}
	}
}

// A handler that takes longer than the sender waits is not interrupted, and the
// message is settled as usual.
func TestALateSettlementIsNoError(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{AnswerWithin: time.Millisecond})
	s := opened(t, rc)
	answer := posting(rc, "1")
	ds := get(t, s, 1)
	if w := <-answer; w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	settled(t, s.Ack(t.Context(), ds))
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if n := rc.buffer.Tracked(); n != 0 {
		t.Errorf("%d messages remain", n)
	}
}

// A message whose sender disconnects stays in flight until it is settled.
func TestASenderThatDisconnects(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{})
	s := opened(t, rc)
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc.ServeHTTP(w, r)
		close(gone)
	}))
	defer server.Close()
	connection, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(connection, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"); err != nil {
		t.Fatal(err)
	}
	ds := get(t, s, 1)
	settled(t, connection.Close())
	<-gone
	settled(t, s.Ack(t.Context(), ds))
}

func TestTheLastSessionAnswersAll(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{AnswerWithin: time.Hour})
	first, second := opened(t, rc), opened(t, rc)
	answer := posting(rc, "1\n2\n")
	get(t, first, 1)
	settled(t, first.Close(t.Context()))
	if ds := get(t, second, 2); ds[0].Message.ID != "1" {
		t.Errorf("%+v", ds[0].Message)
	}
	settled(t, second.Close(t.Context()))
	select {
	case w := <-answer:
		if w.Code != 503 {
			t.Errorf("%d", w.Code)
		}
	case <-time.After(30 * time.Second):
		t.Error("the request is not answered")
	}
}

// Copies of an event that arrive at once are all answered.
func TestCopiesAreAllAnswered(t *testing.T) {
	rc := receiver(t, lines, ReceiverOptions{})
	consume(t, rc)
	var wg sync.WaitGroup
	for range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if w := post(rc, "1"); w.Code != 204 {
				t.Errorf("%d", w.Code)
			}
		}()
	}
	wg.Wait()
}

// Whatever arrives, a receiver answers it, and passes on only messages that a
// consumer can handle.
func FuzzReceivers(f *testing.F) {
	for _, body := range []string{charge, validation, gridEvents(gridTopic, "1", "2"), "[]", "[{}]", "null", `[{"id":"1"},`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AA=="}`, `{"Type":"Notification","TopicArn":"` + snsTopic + `"}`} {
		f.Add(body, structuredType, "1.0", "t=1,v1=00")
	}
	f.Add("[{}]", batchType, "", "v1,AA== v1,")
	f.Add("x", "text/plain", "1.0", "sha256=00")
	anybody := AuthorizeFunc(func(*http.Request) error { return nil })
	d := newSNSDouble(f)
	formats := map[string]Format{
		"cloudevents": CloudEvents(anybody, "a"), "eventgrid": EventGrid(anybody, gridTopic), "stripe": Stripe(stripeOld), "github": GitHub(stripeOld),
		"standard": StandardWebhooks(first), "sns": snsFormat([]string{snsTopic}, d.do),
	}
	f.Fuzz(func(t *testing.T, body, kind, version, signature string) {
		for name, format := range formats {
			rc := receiver(t, format, ReceiverOptions{MaxEvents: 4})
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			r.Header = http.Header{"Content-Type": {kind}, "Ce-Specversion": {version}, "Ce-Id": {signature}, "Ce-Source": {kind}, "Ce-Type": {version},
				"Stripe-Signature": {signature}, "X-Hub-Signature-256": {signature}, "Webhook-Signature": {signature}, "Webhook-Id": {kind},
				"Webhook-Timestamp": {version}}
			got, err := rc.receive(httptest.NewRecorder(), r)
			if err != nil {
				continue
			}
			if strings.Contains("stripe github standard sns", name) && len(got.messages) > 0 {
				t.Fatalf("%s: a message without a valid signature", name)
			}
			for _, m := range got.messages {
				if err := m.Check(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
	})
}
