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
)

const (
	copyAfter  = 200 * time.Millisecond // how long after a message its copy comes
	comesAgain = time.Second            // after which the messages of a killed process come again
	startTime  = 20 * time.Second
)

var consumers = []string{"billing", "points", "letters"}

// events is the broker of a side: a queue for each consumer, in this process, which nobody kills, and behind a socket for
// the processes of the shop. A process that dies has its connection cut by the system, and what it had not acknowledged
// comes again. It can be taken away from everybody and come back, and keeps what it has.
type events struct {
	address string // the same again after an outage
	queues  *membroker.Broker
	publish broker.Publisher

	server *http.Server
	open   sync.WaitGroup // requests

	mu        sync.Mutex
	sessions  map[int]*outlet
	last      int // number of a session
	delivered int
}

// outlet is a session of a process, and what it has to settle.
type outlet struct {
	broker.Session
	consumer string
	mu       sync.Mutex
	out      map[int]broker.Delivery
	last     int
}

func startEvents() (*events, error) {
	e := &events{address: "127.0.0.1:0", queues: membroker.New(nil), sessions: make(map[int]*outlet)}
	for _, name := range consumers {
		e.queues.Bind(name, topic)
	}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.publish = e.queues.Publisher()
	return e, nil
}

func (e *events) url() string { return "http://" + e.address }

func (e *events) start() error {
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		return fmt.Errorf("the broker of the demo: %w", err)
	}
	e.address = l.Addr().String()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /publish", e.take)
	mux.HandleFunc("POST /consume/{consumer}", e.deliver)
	mux.HandleFunc("POST /settle", e.settle)
	e.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.open.Add(1)
		defer e.open.Done()
		mux.ServeHTTP(w, r)
	})}
	go e.server.Serve(l) // until it is stopped
	return nil
}

// stop takes the broker away from everybody at once.
func (e *events) stop() {
	_ = e.server.Close()
	e.open.Wait()
}

// restart lets it come back, and waits until somebody waits for the messages of each consumer: so that what comes next is
// not delivered together, when they are there.
func (e *events) restart(ctx context.Context) error {
	if err := e.start(); err != nil {
		return err
	}
	for late := time.Now().Add(startTime); time.Now().Before(late) && ctx.Err() == nil; pause(ctx, pollEvery) {
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

// take stores messages, and answers with what is wrong with each.
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

// arrival is a delivery as it is sent, or, as the first one, the number of the session.
type arrival struct {
	Session     int             `json:",omitempty"`
	Tag         int             `json:",omitempty"`
	Message     *broker.Message `json:",omitempty"`
	Redelivered bool            `json:",omitempty"`
	Origin      string          `json:",omitempty"`
}

// deliver is a session: it lasts until its request ends.
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

// end gives back what a process had, and does so a little later, as brokers do who find out by a time that somebody died.
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
			err = errors.New("a delivery was settled before")
			continue
		}
		delete(s.out, tag)
		ds = append(ds, d)
	}
	return ds, err
}

// verdict says what becomes of deliveries.
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
	for pause(ctx, later); ctx.Err() == nil; pause(ctx, pollEvery) {
		if e.publish.Publish(ctx, []*broker.Message{m}) == nil {
			return
		}
	}
}

// load tells how many deliveries there were, and how many messages are with the broker or out.
func (e *events) load() (delivered, open int) {
	for _, name := range consumers {
		open += len(e.queues.Messages(name))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivered, open
}
