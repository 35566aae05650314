//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRabbitSession(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t)
	for name, test := range map[string]func(*testing.T, *rabbit){
		"a foreigner's message":            rabbitForeign,
		"a foreigner's dead letter":        rabbitForeignLetter,
		"letters without a place":          rabbitLetterLost,
		"the queue's letters":              rabbitQueueLetters,
		"a delivery of another session":    rabbitOtherSession,
		"settled twice":                    rabbitTwice,
		"a queue that is deleted":          rabbitDeleted,
		"one active session":               rabbitSingleActive,
		"returned to the head":             rabbitHead,
		"attempts are counted":             rabbitAttempts,
		"delayed by a queue of dead ones":  rabbitDetour,
		"what cannot be opened":            rabbitNotOpened,
		"a queue is not changed unnoticed": rabbitDeclaredTwice,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
}

// rabbitOdd returns a message that this adapter would never publish.
func rabbitOdd() amqp.Publishing {
	return amqp.Publishing{
		Body: []byte{0, 255}, ContentType: "application/octet-stream", Timestamp: time.Unix(1700000000, 0), Type: "odd",
		Expiration: "600000", Priority: 3, UserId: "once",
		Headers: amqp.Table{
			"Upper": "a", "number": int32(7), "big": int64(1) << 40, "small": int16(-3), "flag": true, "half": 0.5,
			"bytes": []byte("b"), "raw": []byte{255}, "time": time.Unix(1700000000, 0), "nothing": nil,
			"list": []any{"x"}, "table": amqp.Table{"y": "z"}, "same": "lower", "SAME": "upper", "line": "a\nb",
			"once-key": int32(1), "once-time": "soon", "x-delivery-count": "many", "CC": []any{},
		},
	}
}

func rabbitForeign(t *testing.T, r *rabbit) {
	for _, classic := range []bool{true, false} {
		p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{Classic: classic})
		ch := r.channel(t)
		proof.Must(t, ch.Publish("", p.queue, true, false, rabbitOdd()))
		proof.Must(t, ch.Publish("", p.queue, true, false, amqp.Publishing{}))
		s := p.open(t, 10)
		ds := receive(t, s, 2)
		m := ds[0].Message
		if m.ID != "" || m.Topic != p.queue || string(m.Body) != "\x00\xff" || !m.Time.Equal(time.Unix(1700000000, 0)) ||
			m.OrderingKey != "" || m.Attempt != 1 || ds[0].Redelivered {
			t.Errorf("%+v, redelivered: %v", m, ds[0].Redelivered)
		}
		want := map[string]string{
			"upper": "a", "number": "7", "big": "1099511627776", "small": "-3", "flag": "true", "half": "0.5", "bytes": "b",
			"time": "2023-11-14T22:13:20Z", "same": "lower", "line": "a\nb", "content-type": "application/octet-stream",
			"x-delivery-count": "many",
		}
		if !maps.Equal(m.Header, want) {
			t.Errorf("the headers are %q, want %q", m.Header, want)
		}
		if bare := ds[1].Message; bare.ID != "" || len(bare.Body) > 0 || bare.Header != nil || !bare.Time.IsZero() {
			t.Errorf("%+v", bare)
		}
		proof.Must(t, s.Ack(proof.Soon(t), ds))
		receiveNothing(t, s, 300*time.Millisecond)
	}
}

func rabbitForeignLetter(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	ch := r.channel(t)
	odd := rabbitOdd()
	odd.Headers["CC"] = []any{p.queue + "-copy"}
	p.declare(t, p.queue+"-copy", rabbitbroker.QueueOptions{})
	proof.Must(t, ch.Publish("", p.queue, true, false, odd))
	s := p.open(t, 10)
	proof.Must(t, s.Reject(proof.Soon(t), receive(t, s, 1), "bad\n\x00\xff "+strings.Repeat("é", 4000)))
	receiveNothing(t, s, 300*time.Millisecond)
	letter, ok, err := ch.Get(p.dead, true)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	why, _ := letter.Headers["once-reason"].(string)
	if !strings.HasPrefix(why, "bad  ? éé") || len(why) < 900 || len(why) > 1000 {
		t.Errorf("the reason is %d bytes: %.20q", len(why), why)
	}
	if letter.Type != "odd" || letter.ContentType != odd.ContentType || letter.Expiration != "" ||
		letter.Headers["once-topic"] != p.queue || letter.Headers["table"].(amqp.Table)["y"] != "z" ||
		string(letter.Body) != string(odd.Body) || letter.DeliveryMode != amqp.Persistent {
		t.Errorf("%+v", letter)
	}
	copies, err := ch.QueueDeclarePassive(p.queue+"-copy", true, false, false, false, nil)
	if err != nil || copies.Messages != 1 {
		t.Errorf("%d copies, %v: want the one that the foreigner asked for", copies.Messages, err)
	}
}

// rabbitLetterLost: a message that cannot become a dead letter stays in its
// queue.
func rabbitLetterLost(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	p.publish(t, p.messages(3)...)
	if _, err := r.channel(t).QueueDelete(p.dead, false, false, false); err != nil {
		t.Fatal(err)
	}
	s := p.open(t, 10)
	ds := receive(t, s, 3)
	if err := s.Reject(proof.Soon(t), ds, "no"); err == nil || !strings.Contains(err.Error(), "NO_ROUTE") {
		t.Errorf("%v, want that there is no place", err)
	}
	proof.Must(t, s.Close(proof.Soon(t)))
	for _, d := range receive(t, p.open(t, 10), 3) {
		if !d.Redelivered {
			t.Errorf("%s is not redelivered", d.Message.ID)
		}
	}
}

func rabbitQueueLetters(t *testing.T, r *rabbit) {
	for _, classic := range []bool{true, false} {
		p := r.place(t, rabbitbroker.Options{QueueDeadLetters: true}, rabbitbroker.QueueOptions{Classic: classic})
		p.publish(t, p.messages(3)...)
		s := p.open(t, 10)
		proof.Must(t, s.Reject(proof.Soon(t), receive(t, s, 3), "no"))
		proof.Await(t, "the letters have come", func() bool { return len(p.letters(t)) == 3 })
		for _, s := range []broker.Session{s, openSession(t, rabbitbroker.New(r.DSN(), nil).Queue(p.queue), 1)} {
			_, options := s.(broker.DeadLetterer)
			if !options {
				t.Error("the session does not say what becomes of rejected messages")
			}
		}
	}
	keeps := func(o *rabbitbroker.Options) bool {
		p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
		s := openSession(t, rabbitbroker.New(r.DSN(), o).Queue(p.queue), 1)
		return s.(broker.DeadLetterer).KeepsRejected()
	}
	if keeps(nil) || !keeps(&rabbitbroker.Options{QueueDeadLetters: true}) ||
		!keeps(&rabbitbroker.Options{DeadLetter: &rabbitbroker.DeadLetter{RoutingKey: "dead"}}) {
		t.Error("KeepsRejected is not what the options say")
	}
}

func rabbitOtherSession(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	p.publish(t, p.messages(2)...)
	first, second := p.open(t, 1), p.open(t, 1)
	a, b := receive(t, first, 1), receive(t, second, 1)
	for _, err := range []error{
		first.Ack(proof.Soon(t), b), first.Return(proof.Soon(t), b, 0), first.Reject(proof.Soon(t), b, ""),
		second.Ack(proof.Soon(t), append(b, a...)), second.Ack(proof.Soon(t), []broker.Delivery{{}}),
	} {
		if !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	}
	proof.Must(t, errors.Join(first.Close(proof.Soon(t)), second.Close(proof.Soon(t))))
	receive(t, p.open(t, 10), 2) // nothing was acked
}

// rabbitTwice: RabbitMQ would end the session if it were told twice.
func rabbitTwice(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	p.publish(t, p.messages(3)...)
	s := p.open(t, 10)
	ds := receive(t, s, 3)
	proof.Must(t, s.Ack(proof.Soon(t), ds[:1]))
	for _, err := range []error{s.Ack(proof.Soon(t), ds[:1]), s.Return(proof.Soon(t), ds[:1], 0), s.Reject(proof.Soon(t), ds[:2], "no")} {
		if !errors.Is(err, broker.ErrSettled) {
			t.Errorf("%v, want ErrSettled", err)
		}
	}
	if letters := p.letters(t); len(letters) != 1 || letters[0].ID != ds[1].Message.ID {
		t.Errorf("the dead letters are %v, want one of the message that was not settled", letters)
	}
	receiveNothing(t, s, 300*time.Millisecond)
	proof.Must(t, s.Ack(proof.Soon(t), ds[2:]))
	proof.Must(t, s.Close(proof.Soon(t)))
	if err := s.Ack(proof.Soon(t), ds); err == nil {
		t.Error("a closed session acknowledges")
	}
	receiveNothing(t, p.open(t, 10), 300*time.Millisecond)
}

func rabbitDeleted(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	s := p.open(t, 10)
	if _, err := r.channel(t).QueueDelete(p.queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), "is the queue gone?") {
		t.Errorf("%v, want that the queue is gone", err)
	}
}

func rabbitSingleActive(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{SingleActive: true})
	first, second := p.open(t, 5), p.open(t, 5)
	p.publish(t, p.messages(20)...)
	next := 0
	take := func(s broker.Session, n int, ack bool) {
		t.Helper()
		for range n {
			ds := receive(t, s, 1)
			if want := p.message(next).ID; ds[0].Message.ID != want {
				t.Errorf("%s has come, want %s", ds[0].Message.ID, want)
			}
			if ack {
				proof.Must(t, s.Ack(proof.Soon(t), ds))
			}
			next++
		}
	}
	take(first, 10, true)
	take(first, 5, false)
	receiveNothing(t, second, 300*time.Millisecond)
	proof.Must(t, first.Close(proof.Soon(t)))
	next -= 5
	take(second, 10, true)
}

func rabbitHead(t *testing.T, r *rabbit) {
	for _, classic := range []bool{true, false} {
		p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{Classic: classic})
		p.publish(t, p.messages(5)...)
		s := p.open(t, 1)
		for i := range 5 {
			proof.Must(t, s.Return(proof.Soon(t), receive(t, s, 1), time.Hour))
			d := receive(t, s, 1)
			if d[0].Message.ID != p.message(i).ID || !d[0].Redelivered {
				t.Errorf("classic %v: %s has come, want %s again", classic, d[0].Message.ID, p.message(i).ID)
			}
			proof.Must(t, s.Ack(proof.Soon(t), d))
		}
	}
}

func rabbitAttempts(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	p.publish(t, p.message(0))
	s := p.open(t, 1)
	for attempt := 1; attempt <= 25; attempt++ { // RabbitMQ 4 would stop at 20
		d := receive(t, s, 1)
		if d[0].Message.Attempt != attempt || d[0].Redelivered != (attempt > 1) {
			t.Fatalf("attempt %d, redelivered: %v, want attempt %d", d[0].Message.Attempt, d[0].Redelivered, attempt)
		}
		if attempt%2 == 0 {
			proof.Must(t, s.Close(proof.Soon(t)))
			s = p.open(t, 1)
			continue
		}
		proof.Must(t, s.Return(proof.Soon(t), d, 0))
	}
}

// rabbitDetour delays a message by a queue: it is rejected to a queue from
// which messages expire back to the first.
func rabbitDetour(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{QueueDeadLetters: true}, rabbitbroker.QueueOptions{
		Classic: true, Arguments: amqp.Table{"x-dead-letter-routing-key": "detour"}})
	p.declare(t, "detour", rabbitbroker.QueueOptions{Classic: true,
		DeadLetter: &rabbitbroker.DeadLetter{RoutingKey: p.queue}, Arguments: amqp.Table{"x-message-ttl": 50}})
	p.publish(t, p.message(0))
	s := p.open(t, 1)
	for attempt := 1; attempt <= 3; attempt++ {
		d := receive(t, s, 1)
		if d[0].Message.Attempt != attempt || d[0].Redelivered != (attempt > 1) {
			t.Errorf("attempt %d, redelivered: %v, want attempt %d", d[0].Message.Attempt, d[0].Redelivered, attempt)
		}
		proof.Must(t, s.Reject(proof.Soon(t), d, ""))
	}
}

func rabbitNotOpened(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	for _, window := range []int{-1, 0, 65536} {
		if _, err := p.broker.Queue(p.queue).Open(proof.Soon(t), window); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("a window of %d: %v", window, err)
		}
	}
	nowhere := rabbitbroker.New(r.DSN(), &rabbitbroker.Options{DeadLetter: &rabbitbroker.DeadLetter{}})
	if _, err := nowhere.Queue(p.queue).Open(proof.Soon(t), 1); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("letters to nowhere: %v", err)
	}
	if _, err := p.broker.Queue("none").Open(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
		t.Errorf("a queue that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.broker.Queue(p.queue).Open(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	widest := p.open(t, 65535)
	if _, err := widest.Receive(proof.Soon(t), 0); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("no messages: %v", err)
	}
	p.publish(t, p.messages(3)...)
	receive(t, widest, 3)
}

func rabbitDeclaredTwice(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	same := rabbitbroker.QueueOptions{Exchange: p.exchange, Topics: []string{"more"}}
	proof.Must(t, p.broker.DeclareQueue(proof.Soon(t), p.queue, same))
	other := rabbitbroker.QueueOptions{SingleActive: true}
	if err := p.broker.DeclareQueue(proof.Soon(t), p.queue, other); err == nil || !strings.Contains(err.Error(), "406") {
		t.Errorf("%v, want that the queue is another one", err)
	}
	m := p.message(0)
	m.Topic = "more"
	p.publish(t, m, p.message(1))
}
