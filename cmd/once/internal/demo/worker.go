package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/effectively-once/once"
)

// Handler handles a delivery. It may be called any number of times with the same order, from several processes
// at once.
type Handler func(context.Context, *Shop, Order) error

// The two sides.
const (
	Without = "without"
	With    = "with"
)

// Handlers are those that the demo compares, by side.
func Handlers() map[string]Handler {
	return map[string]Handler{Without: HandleByHand, With: HandleOnce}
}

const taskTime = 30 * time.Second

// Work is the whole life of a worker process. It returns when in ends, and then the process must end too,
// whatever it is doing: in ends when the demo has died.
func Work(in io.Reader, out io.Writer, handlers map[string]Handler) error {
	lines := json.NewDecoder(in)
	var where setup
	if err := lines.Decode(&where); err != nil {
		return fmt.Errorf("no setup on stdin: workers are started by once demo: %w", err)
	}
	handle, ok := handlers[where.Side]
	if !ok {
		return fmt.Errorf("no handler for the side %q", where.Side)
	}
	shop, err := openShop(where)
	if err != nil {
		return err
	}
	w := &worker{shop: shop, handle: handle, answers: json.NewEncoder(out)}
	tasks := make(chan task)
	go w.serve(tasks)
	for {
		var t task
		switch err := lines.Decode(&t); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		tasks <- t
	}
}

// worker does one task at a time.
type worker struct {
	shop    *Shop
	handle  Handler
	answers *json.Encoder
}

func (w *worker) serve(tasks <-chan task) {
	for t := range tasks {
		w.shop.at = w.deathAt(t.DieAt)
		w.answer(w.do(t))
	}
}

func (w *worker) do(t task) answer {
	ctx, cancel := context.WithTimeout(context.Background(), taskTime)
	defer cancel()
	if err := w.handle(ctx, w.shop, t.Order); err != nil {
		after, retry := once.MayRetry(err)
		return answer{Refused: err.Error(), Retry: retry, After: after}
	}
	if t.DieAt != "" {
		w.waitForDeath(beforeAck)
	}
	return answer{Acked: true}
}

// deathAt is told of every point that is passed, and stops at one of them.
func (w *worker) deathAt(last point) func(point) {
	return func(p point) {
		if p == last {
			w.waitForDeath(p)
		}
	}
}

// waitForDeath holds everything that the worker holds: a claim, a transaction, a connection.
func (w *worker) waitForDeath(p point) {
	w.answer(answer{At: p})
	select {}
}

// answer has nobody to tell if it fails: then the broker has died, and the end of stdin says so.
func (w *worker) answer(a answer) { _ = w.answers.Encode(a) }
