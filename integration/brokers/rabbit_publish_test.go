//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRabbitPublisher(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t)
	for name, test := range map[string]func(*testing.T, *rabbit){
		"returned messages are told from confirmed ones": rabbitReturned,
		"64 goroutines":                     rabbitCrowd,
		"an exchange that is made too late": rabbitLateExchange,
		"a full queue":                      rabbitFullQueue,
		"what would break the connection":   rabbitTooLarge,
		"a confirm that never comes":        rabbitUnconfirmed,
		"a silent server":                   rabbitSilent,
		"a write that hangs":                rabbitHangingWrite,
		"Close while a write hangs":         rabbitCloseWhileWriting,
		"a heartbeat that is missed":        rabbitHeartbeat,
		"wrong addresses":                   rabbitWrongAddress,
		"nothing is left":                   rabbitLeavesNothing,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
}

// rabbitMixed returns a batch in which every third message has no queue, and
// all have the same ID.
func rabbitMixed(p *rabbitPlace, n int) (ms []*broker.Message) {
	for i := range n {
		m := p.message(0)
		if i%3 == 1 {
			m.Topic = "nowhere"
		}
		ms = append(ms, m)
	}
	return ms
}

func rabbitCheckMixed(tb testing.TB, errs []error) {
	for i, err := range errs {
		if lost := i%3 == 1; lost != (err != nil) || lost && !strings.Contains(err.Error(), "NO_ROUTE") {
			tb.Errorf("message %d: %v", i, err)
		}
	}
}

func rabbitReturned(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	for range 20 {
		rabbitCheckMixed(t, p.publisher.Publish(proof.Soon(t), rabbitMixed(p, 31)))
	}
	// Alone, so that the confirm follows at once.
	lost := p.message(1)
	lost.Topic = "nowhere"
	for range 200 {
		if errs := p.publisher.Publish(proof.Soon(t), []*broker.Message{lost}); errs == nil {
			t.Fatal("a message without a queue was confirmed")
		}
		p.publish(t, p.message(1))
	}
}

func rabbitCrowd(t *testing.T, r *rabbit) {
	const crowd, batches, size = 64, 4, 16
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	var all sync.WaitGroup
	for range crowd {
		all.Go(func() {
			for range batches {
				rabbitCheckMixed(t, p.publisher.Publish(proof.Soon(t), rabbitMixed(p, size)))
			}
		})
	}
	all.Wait()
	s := p.open(t, 1000)
	for range crowd {
		proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, batches*(size-size/3))))
	}
	receiveNothing(t, s, 300*time.Millisecond)
}

func rabbitLateExchange(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	late := p.broker.Publisher(p.exchange + ".late")
	defer late.Close()
	for i, err := range late.Publish(proof.Soon(t), p.messages(3)) {
		if err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
			t.Errorf("message %d: %v, want that the exchange is not there", i, err)
		}
	}
	ch := r.channel(t)
	proof.Must(t, ch.ExchangeDeclare(p.exchange+".late", amqp.ExchangeFanout, true, false, false, false, nil))
	proof.Must(t, ch.QueueBind(p.queue, "", p.exchange+".late", false, nil))
	if errs := late.Publish(proof.Soon(t), p.messages(3)); errs != nil {
		t.Error(errs)
	}
}

func rabbitFullQueue(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{Classic: true,
		Arguments: amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}})
	p.publish(t, p.message(0))
	for _, err := range p.publisher.Publish(proof.Soon(t), p.messages(1)) {
		if err == nil || !strings.Contains(err.Error(), "rejected") {
			t.Errorf("%v, want that the queue is full", err)
		}
	}
}

func rabbitTooLarge(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{MaxBody: 1 << 20}, rabbitbroker.QueueOptions{})
	ms := p.messages(7)
	ms[1].Body = make([]byte, 1<<20+1)
	ms[2].Header = map[string]string{"x": strings.Repeat("x", 128<<10)}
	ms[3].ID = ""
	ms[4].Header = map[string]string{"x": strings.Repeat("x", 125<<10), "content-type": strings.Repeat("y", 300)}
	ms[5] = nil
	for i, err := range p.publisher.Publish(proof.Soon(t), ms) {
		if bad := i == 1 || i == 2 || i == 3 || i == 5; bad != errors.Is(err, broker.ErrInvalid) || bad != (err != nil) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	s := p.open(t, 10)
	for i, d := range receive(t, s, 3) {
		if want := ms[[]int{0, 4, 6}[i]]; d.Message.ID != want.ID || len(d.Message.Header) != len(want.Header) {
			t.Errorf("%s has come, want %s", d.Message.ID, want.ID)
		}
	}
}

// rabbitInTime fails unless the call ends with its context.
func rabbitInTime(tb testing.TB, what string, call func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		tb.Errorf("%s: %v, want that the time was over", what, err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		tb.Errorf("%s ended %v late", what, took)
	}
}

func rabbitSilent(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{})
	p.publish(t, p.messages(5)...)
	idle, fresh := p.broker.Publisher(p.exchange), p.broker.Publisher(p.exchange)
	defer idle.Close()
	defer fresh.Close()
	if errs := idle.Publish(proof.Soon(t), p.messages(1)); errs != nil {
		t.Fatal(errs)
	}
	s := p.open(t, 2)
	ds := receive(t, s, 2)
	proof.Must(t, r.Pause())
	defer r.Resume()
	publish := func(to broker.Publisher) func(context.Context) error {
		return func(ctx context.Context) error { return errors.Join(to.Publish(ctx, p.messages(1))...) }
	}
	rabbitInTime(t, "Publish", publish(idle))
	rabbitInTime(t, "Publish that connects", publish(fresh))
	rabbitInTime(t, "Open", func(ctx context.Context) error {
		_, err := p.broker.Queue(p.queue).Open(ctx, 1)
		return err
	})
	rabbitInTime(t, "DeclareQueue", func(ctx context.Context) error {
		return p.broker.DeclareQueue(ctx, p.queue, rabbitbroker.QueueOptions{})
	})
	rabbitInTime(t, "Receive", func(ctx context.Context) error {
		_, err := s.Receive(ctx, 1)
		return err
	})
	rabbitInTime(t, "Reject", func(ctx context.Context) error { return s.Reject(ctx, ds[:1], "no") })
	rabbitInTime(t, "Close", func(ctx context.Context) error {
		_ = s.Close(ctx)
		<-ctx.Done() // Close may be earlier, but not later
		return ctx.Err()
	})
	proof.Must(t, r.Resume())
	p.publish(t, p.message(9))
	if errs := idle.Publish(proof.Soon(t), p.messages(1)); errs != nil {
		t.Error(errs)
	}
}

// large is larger than the buffers of the kernel, so a write blocks if the
// server does not read. The options of its publisher must allow that size.
func (p *rabbitPlace) large() []*broker.Message {
	m := p.message(0)
	m.Body = rabbitLargeBody
	return []*broker.Message{m}
}

var (
	rabbitLargeBody = make([]byte, 100<<20)
	rabbitLarge     = rabbitbroker.Options{MaxBody: len(rabbitLargeBody)}
)

func rabbitHangingWrite(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitLarge, rabbitbroker.QueueOptions{})
	p.publish(t, p.message(1))
	proof.Must(t, r.Pause())
	defer r.Resume()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			rabbitInTime(t, "Publish", func(ctx context.Context) error {
				return errors.Join(p.publisher.Publish(ctx, p.large())...)
			})
		})
	}
	all.Wait()
	proof.Must(t, r.Resume())
	p.publish(t, p.message(2))
}

func rabbitCloseWhileWriting(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitLarge, rabbitbroker.QueueOptions{})
	p.publish(t, p.message(1))
	proof.Must(t, r.Pause())
	defer r.Resume()
	done := make(chan []error)
	go func() { done <- p.publisher.Publish(context.Background(), p.large()) }()
	proof.Await(t, "the write hangs", func() bool {
		return strings.Contains(stacks(), ".(*confirmChannel).write(")
	})
	_ = p.publisher.Close() // without an answer, but it ends
	if errs := <-done; errs == nil {
		t.Error("a paused server has confirmed a message")
	}
	proof.Must(t, p.publisher.Close())
	if errs := p.publisher.Publish(proof.Soon(t), p.messages(1)); errs == nil {
		t.Error("a closed publisher publishes")
	}
}

// rabbitHeartbeat: the heartbeat ends calls without a deadline when the server
// is silently gone.
func rabbitHeartbeat(t *testing.T, r *rabbit) {
	p := r.place(t, rabbitbroker.Options{MaxBody: rabbitLarge.MaxBody,
		Config: amqp.Config{Heartbeat: 2 * time.Second}}, rabbitbroker.QueueOptions{})
	p.publish(t, p.message(1))
	s := p.open(t, 10)
	receive(t, s, 1)
	proof.Must(t, r.Pause())
	defer r.Resume()
	var all sync.WaitGroup
	all.Go(func() {
		if errs := p.publisher.Publish(context.Background(), p.large()); errs == nil {
			t.Error("a silent server has confirmed a message")
		}
	})
	all.Go(func() {
		if _, err := s.Receive(context.Background(), 1); err == nil {
			t.Error("a silent server has delivered a message")
		}
	})
	done := make(chan struct{})
	go func() { defer close(done); all.Wait() }()
	select {
	case <-done:
	case <-time.After(proof.Patience):
		t.Fatal("the missing heartbeat was not noticed")
	}
}

func rabbitWrongAddress(t *testing.T, r *rabbit) {
	secret := "s3cr3t"
	for url, want := range map[string]string{
		"amqp://once:" + secret + "@127.0.0.1:port/":        "the URL must look like",
		"http://once:" + secret + "@127.0.0.1/":             "the URL must look like",
		fmt.Sprintf("amqp://once:%s@%s/", secret, r.Addr()): "not allowed",
		"amqp://once:" + secret + "@127.0.0.1:1/":           "refused",
		r.DSN() + "elsewhere":                               "elsewhere",
	} {
		b := rabbitbroker.New(url, nil)
		publisher := b.Publisher("")
		_, err := b.Queue("q").Open(proof.Soon(t), 1)
		errs := publisher.Publish(proof.Soon(t), []*broker.Message{{ID: "1", Topic: "q"}})
		for _, err := range append(errs, err) {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v, want %q and no password", err, want)
			}
		}
		proof.Must(t, publisher.Close())
	}
}

func rabbitLeavesNothing(t *testing.T, r *rabbit) {
	proof.Await(t, "no goroutines of others are left", func() bool { return len(left()) == 0 })
	// Shared by all connections that are opened concurrently.
	shared := amqp.Config{Properties: amqp.Table{"connection_name": "shared"}}
	p := r.place(t, rabbitbroker.Options{Config: shared}, rabbitbroker.QueueOptions{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			publisher := p.broker.Publisher(p.exchange)
			if errs := publisher.Publish(proof.Soon(t), p.messages(3)); errs != nil {
				t.Error(errs)
			}
			s, err := p.broker.Queue(p.queue).Open(proof.Soon(t), 10)
			if err == nil {
				_, err = s.Receive(proof.Soon(t), 3)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(s.Close(proof.Soon(t)), publisher.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(left(), "\n\n"))
		}
	})
	proof.Await(t, "no goroutine is left", func() bool { return len(left()) == 0 })
	if len(shared.Properties) != 1 {
		t.Errorf("the caller's properties were changed: %v", shared.Properties)
	}
}

// left returns the goroutines of a Broker or of its client.
func left() []string {
	return slices.DeleteFunc(strings.Split(stacks(), "\n\n"), func(stack string) bool {
		return !strings.Contains(stack, "amqp091") && !strings.Contains(stack, "rabbitbroker.(") &&
			!strings.Contains(stack, "conncut.")
	})
}

func stacks() string {
	text := make([]byte, 4<<20)
	return string(text[:runtime.Stack(text, true)])
}

func TestRabbitAlarmHoldsUpPublishersOnly(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t, "vm_memory_high_watermark.absolute = 1MB")
	p := r.place(t, rabbitLarge, rabbitbroker.QueueOptions{})
	published := 0
	for ; published < 10; published++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		errs := p.publisher.Publish(ctx, p.messages(1))
		cancel()
		if errs != nil {
			break
		}
	}
	if published == 10 {
		t.Fatal("the alarm holds up nobody: the test shows nothing")
	}
	rabbitInTime(t, "Publish", func(ctx context.Context) error {
		return errors.Join(p.publisher.Publish(ctx, p.messages(3))...)
	})
	for range 3 {
		rabbitInTime(t, "Publish of much", func(ctx context.Context) error {
			return errors.Join(p.publisher.Publish(ctx, p.large())...)
		})
	}
	s := p.open(t, 10)
	if published > 0 {
		proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, published)))
	}
	proof.Must(t, s.Close(proof.Soon(t)))
}
