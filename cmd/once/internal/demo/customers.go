package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/trial"
)

const customers = 6 // who order concurrently

// place lets customers place the orders of a phase and returns when each has an
// answer.
func (s *side) place(ctx context.Context, p phase) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ordering sync.WaitGroup
	free := make(chan struct{}, customers)
	begin := func(o Order, tried func()) {
		s.mu.Lock()
		s.placed = append(s.placed, placed{o, p.name})
		s.mu.Unlock()
		free <- struct{}{}
		ordering.Go(func() {
			defer func() { <-free }()
			if err := s.order(ctx, o, tried); err != nil {
				cancel(err)
			}
		})
	}
	for _, orders := range p.orders {
		if ctx.Err() != nil || s.options.enough() {
			break
		}
		s.options.linger(ctx, betweenTwo)
		if orders[0].Window != outage {
			begin(orders[0], func() {})
			if p.name == inTransaction || p.name == inHandler { // a process that is stopped in a transaction blocks all others
				trial.Pause(ctx, 2*quietTime)
			}
			continue
		}
		ordering.Wait() // no other order may suffer
		if err := s.inOutage(ctx, orders, begin); err != nil {
			cancel(err)
		}
	}
	ordering.Wait()
	return context.Cause(ctx)
}

// inOutage takes the broker down until each order has been tried.
func (s *side) inOutage(ctx context.Context, orders []Order, begin func(Order, func())) error {
	s.begins(question{Order: orders[0]})
	s.mu.Lock()
	s.outages++
	s.mu.Unlock()
	s.events.interrupt()
	var tried sync.WaitGroup
	for _, o := range orders {
		tried.Add(1)
		begin(o, sync.OnceFunc(tried.Done))
	}
	tried.Wait()
	s.options.linger(ctx, awayFor)
	return s.events.restart(ctx)
}

// order places an order, as often as needed. It reports the first try.
func (s *side) order(ctx context.Context, o Order, tried func()) error {
	defer tried()
	if o.Window != doubleClick {
		return s.request(ctx, o, tried)
	}
	first := make(chan error)
	go func() { first <- s.request(ctx, o, tried) }()
	err := s.request(ctx, o, tried)
	if other := <-first; err == nil {
		err = other
	}
	return err
}

// request repeats a request with one key until it is answered. It gives up on
// permanent problems, such as a full disk.
func (s *side) request(ctx context.Context, o Order, tried func()) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	for begun := time.Now(); ctx.Err() == nil; trial.Pause(ctx, pollEvery) {
		status, answer, err := s.attempt(ctx, o, body)
		tried()
		late := time.Since(begun) > stuckAfter
		switch {
		case err != nil && late:
			return fmt.Errorf("%s could not be placed for %v: %w", o.ID, stuckAfter, err)
		case err != nil: // the outcome is unknown
		case status == http.StatusOK && o.Window == lostReply && s.begins(question{Order: o}):
		case status == http.StatusOK:
			s.mu.Lock()
			s.acked[o.ID] = true
			s.mu.Unlock()
			return nil
		case status >= 400 && status < 500 && status != http.StatusConflict:
			return fmt.Errorf("%s was rejected: %d %s", o.ID, status, answer)
		case late:
			return fmt.Errorf("%s could not be placed for %v: %d %s", o.ID, stuckAfter, status, answer)
		}
	}
	return context.Cause(ctx)
}

func (s *side) attempt(ctx context.Context, o Order, body []byte) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	url, err := s.door(ctx)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Idempotency-Key", `"`+o.ID+`"`)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 500))
	return resp.StatusCode, answer, err
}

// door returns the process for the next request, in turn. It waits while there
// is none.
func (s *side) door(ctx context.Context) (url string, err error) {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.processes) == 0 && ctx.Err() == nil {
		s.changed.Wait()
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	s.turn++
	return s.processes[s.turn%len(s.processes)].url, nil
}

func (s *side) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}
