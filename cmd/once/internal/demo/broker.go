package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/cmd/once/internal/trial"
)

const (
	copyAfter  = 200 * time.Millisecond // delay of the copy of a message
	comesAgain = time.Second            // redelivery delay after a process was killed
	startTime  = 20 * time.Second
)

var consumers = []string{"billing", "points", "letters"}

// events is the broker of a side, with a queue for each consumer. It runs in
// this process and serves the processes of the shop over a socket. If a process
// dies, the system cuts its connection, and its unacknowledged messages are
// redelivered. The broker can go down and come back with its messages. It keeps
// its port meanwhile, which another process could take.
type events struct {
	address string
	queues  *membroker.Broker
	publish broker.Publisher

	server *http.Server
	open   sync.WaitGroup // open requests

	mu        sync.Mutex
	down      bool
	conns     map[net.Conn]bool
	sessions  map[int]*outlet
	last      int // number of the last session
	delivered int
}

// outlet is the session of a process with its unsettled deliveries.
type outlet struct {
	broker.Session
	consumer string
	mu       sync.Mutex
	out      map[int]broker.Delivery
	last     int
}

func startEvents() (*events, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the broker of the demo: %w", err)
	}
	e := &events{address: l.Addr().String(), queues: membroker.New(nil), conns: make(map[net.Conn]bool),
		sessions: make(map[int]*outlet)}
	for _, name := range consumers {
		e.queues.Bind(name, topic)
	}
	e.publish = e.queues.Publisher()
	e.serve(l)
	return e, nil
}

func (e *events) url() string { return "http://" + e.address }

func (e *events) serve(l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /publish", e.take)
	mux.HandleFunc("POST /consume/{consumer}", e.deliver)
	mux.HandleFunc("POST /settle", e.settle)
	e.server = &http.Server{ConnState: e.admit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !e.begin() {
			panic(http.ErrAbortHandler)
		}
		defer e.open.Done()
		mux.ServeHTTP(w, r)
	})}
	go e.server.Serve(l) // until it is stopped
}

// admit closes a new connection if the broker is down.
func (e *events) admit(c net.Conn, state http.ConnState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch state {
	case http.StateNew:
		e.conns[c] = true
		if e.down {
			_ = c.Close()
		}
	case http.StateClosed:
		delete(e.conns, c)
	}
}

// begin counts a request. It returns false if the broker is down.
func (e *events) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.down {
		e.open.Add(1)
	}
	return !e.down
}

// stop takes the broker down for ever.
func (e *events) stop() {
	e.interrupt()
	_ = e.server.Close()
}

// interrupt takes the broker down and waits for its requests to end.
func (e *events) interrupt() {
	e.mu.Lock()
	e.down = true
	for c := range e.conns {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.open.Wait()
}

// restart brings the broker back and waits until each consumer is connected, so
// that the next messages are not delivered as one batch.
func (e *events) restart(ctx context.Context) error {
	e.mu.Lock()
	e.down = false
	e.mu.Unlock()
	for late := time.Now().Add(startTime); time.Now().Before(late) && ctx.Err() == nil; trial.Pause(ctx, pollEvery) {
		if e.attended() {
			break
		}
	}
	return ctx.Err()
}

func (e *events) attended() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	back := make(map[string]bool)
	for _, s := range e.sessions {
		back[s.consumer] = true
	}
	return len(back) == len(consumers)
}

// take stores messages and answers with an error for each.
func (e *events) take(w http.ResponseWriter, r *http.Request) {
	var ms []*broker.Message
	if err := json.NewDecoder(r.Body).Decode(&ms); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	texts := make([]string, len(ms))
	for i, err := range e.publish.Publish(r.Context(), ms) {
		if err != nil {
			texts[i] = err.Error()
		}
	}
	_ = json.NewEncoder(w).Encode(texts)
}

// arrival is a delivery on the wire. The first one carries the number of the
// session.
type arrival struct {
	Session     int             `json:",omitempty"`
	Tag         int             `json:",omitempty"`
	Message     *broker.Message `json:",omitempty"`
	Redelivered bool            `json:",omitempty"`
	Origin      string          `json:",omitempty"`
}

// deliver runs a session until its request ends.
func (e *events) deliver(w http.ResponseWriter, r *http.Request) {
	window, err := strconv.Atoi(r.FormValue("window"))
	if err != nil {
		http.Error(w, "window is no number", http.StatusBadRequest)
		return
	}
	s := &outlet{consumer: r.PathValue("consumer"), out: make(map[int]broker.Delivery)}
	if s.Session, err = e.queues.Queue(s.consumer).Open(r.Context(), window); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.end(context.WithoutCancel(r.Context()))
	e.mu.Lock()
	e.last++
	number := e.last
	e.sessions[number] = s
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.sessions, number)
		e.mu.Unlock()
	}()
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	for err = lines.Encode(arrival{Session: number}); err == nil; {
		if err = flush.Flush(); err != nil {
			return
		}
		var ds []broker.Delivery
		if ds, err = s.Receive(r.Context(), window); err != nil {
			return
		}
		e.mu.Lock()
		e.delivered += len(ds)
		e.mu.Unlock()
		for _, d := range ds {
			if err == nil {
				err = lines.Encode(arrival{Tag: s.keep(d), Message: d.Message, Redelivered: d.Redelivered, Origin: d.Origin})
			}
		}
	}
}

// end redelivers the messages of a session after a delay, as brokers do that
// detect a dead consumer by a timeout.
func (s *outlet) end(ctx context.Context) {
	s.mu.Lock()
	rest := slices.Collect(maps.Values(s.out))
	clear(s.out)
	s.mu.Unlock()
	_ = s.Return(ctx, rest, comesAgain)
	_ = s.Close(ctx)
}

func (s *outlet) keep(d broker.Delivery) (tag int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.out[s.last] = d
	return s.last
}

func (s *outlet) take(tags []int) (ds []broker.Delivery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tag := range tags {
		d, ok := s.out[tag]
		if !ok {
			err = errors.New("the delivery was already settled")
			continue
		}
		delete(s.out, tag)
		ds = append(ds, d)
	}
	return ds, err
}

// verdict settles deliveries.
type verdict struct {
	Session int
	Tags    []int
	How     how
	After   time.Duration
	Reason  string
}

type how string

const (
	acknowledge how = "ack"
	giveBack    how = "return"
	giveUp      how = "reject"
)

func (e *events) settle(w http.ResponseWriter, r *http.Request) {
	var v verdict
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	s := e.sessions[v.Session]
	e.mu.Unlock()
	if s == nil {
		http.Error(w, "the session has ended", http.StatusGone)
		return
	}
	ds, err := s.take(v.Tags)
	switch v.How {
	case acknowledge:
		err = errors.Join(err, s.Ack(r.Context(), ds))
	case giveBack:
		err = errors.Join(err, s.Return(r.Context(), ds, v.After))
	case giveUp:
		err = errors.Join(err, s.Reject(r.Context(), ds, v.Reason))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// again publishes a copy of a message later.
func (e *events) again(ctx context.Context, m *broker.Message, later time.Duration) {
	for trial.Pause(ctx, later); ctx.Err() == nil; trial.Pause(ctx, pollEvery) {
		if e.publish.Publish(ctx, []*broker.Message{m}) == nil {
			return
		}
	}
}

// waiting is the source of a consumer, as whoever asks for its lag sees it.
type waiting struct {
	broker.Source
	events *events
	name   string
}

func (w waiting) Name() string { return w.name }

// Lag returns the number of messages that are queued or in flight.
func (w waiting) Lag(ctx context.Context) (broker.Lag, error) {
	w.events.mu.Lock()
	down := w.events.down
	w.events.mu.Unlock()
	if down {
		return broker.Lag{}, errors.New("the broker of the demo is down")
	}
	return w.Source.(broker.Lagger).Lag(ctx)
}

// sources returns those of all consumers.
func (e *events) sources() (all []broker.Source) {
	for _, name := range consumers {
		all = append(all, waiting{e.queues.Queue(name), e, queue{consumer: name}.Name()})
	}
	return all
}

// load returns the number of deliveries, and the number of messages that are
// queued or in flight.
func (e *events) load() (delivered, open int) {
	for _, name := range consumers {
		open += len(e.queues.Messages(name))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivered, open
}
