package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
)

// Service is a shop that runs in several processes.
type Service struct {
	Place http.Handler                  // takes orders
	Run   []func(context.Context) error // publish and consume until the context ends
}

// The two sides.
const (
	Without = "without"
	With    = "with"
)

// Services are the compared services, by side.
func Services() map[string]func(*Shop) Service {
	return map[string]func(*Shop) Service{Without: ByHand, With: WithOnce}
}

const (
	requestTime = 30 * time.Second
	publishTime = time.Second // timeout for a broker that is down
	handlers    = 8           // concurrent handlers of a consumer by hand
)

// Work runs a process until in ends. Then the process must exit at once,
// because in ends when the demo has ended or died.
func Work(in io.Reader, out io.Writer, services map[string]func(*Shop) Service) error {
	lines := json.NewDecoder(in)
	var where setup
	if err := lines.Decode(&where); err != nil {
		return fmt.Errorf("no setup on stdin: workers are started by once demo: %w", err)
	}
	open, ok := services[where.Side]
	if !ok {
		return fmt.Errorf("no service for the side %q", where.Side)
	}
	t := &teller{out: json.NewEncoder(out), waiting: map[int]chan answer{}}
	shop, err := openShop(where, t.ask)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- t.listen(lines) }()
	go func() { ended <- serve(context.Background(), open(shop), t) }()
	return <-ended
}

// serve runs a service and returns when a part of it fails.
func serve(ctx context.Context, s Service, t *teller) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the shop needs a loopback port: %w", err)
	}
	failed := make(chan error, 1+len(s.Run))
	for _, run := range s.Run {
		go func() { failed <- run(ctx) }()
	}
	server := &http.Server{Handler: &door{s.Place, t.ask}, ReadHeaderTimeout: requestTime}
	go func() { failed <- server.Serve(listener) }()
	t.say(ready{URL: "http://" + listener.Addr().String()})
	return <-failed
}

// door asks what to do with a request.
type door struct {
	place http.Handler
	ask   asker
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var o Order
	if json.Unmarshal(body, &o) == nil {
		d.ask(atRequest, "", o, nil)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	d.place.ServeHTTP(w, r)
}

func readOrder(r *http.Request) (o Order, err error) {
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return o, fmt.Errorf("the body is not an order: %w", err)
	}
	return o, nil
}

// teller asks the demo and receives its answers.
type teller struct {
	mu      sync.Mutex
	out     *json.Encoder
	last    int
	waiting map[int]chan answer
}

// say ignores errors: they mean that the demo has died, which the end of stdin
// reports.
func (t *teller) say(what any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(what)
}

// ask waits for the answer, if the window of the order can begin here. The
// process may be killed while it waits.
func (t *teller) ask(at point, consumer string, o Order, m *broker.Message) (lose bool) {
	if meets[o.Window] != at && waits[o.Window] != at {
		return false
	}
	got := make(chan answer, 1)
	t.mu.Lock()
	t.last++
	t.waiting[t.last] = got
	_ = t.out.Encode(question{Number: t.last, At: at, Consumer: consumer, Order: o, Message: m})
	t.mu.Unlock()
	return (<-got).Lose
}

// listen hands answers to their callers until there are no more.
func (t *teller) listen(lines *json.Decoder) error {
	for {
		var a answer
		switch err := lines.Decode(&a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		t.mu.Lock()
		got := t.waiting[a.Number]
		delete(t.waiting, a.Number)
		t.mu.Unlock()
		got <- a
	}
}
