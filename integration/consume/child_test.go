//go:build linux

package consume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/store"
)

// plan is the configuration of a process, which runs one consumer.
type plan struct {
	Base   engines.Place
	Post   post
	Calls  string // the file of attempts
	Shape  string // of the handler
	Pass   bool   // OnParked
	Check  bool   // Checkpoint
	Keyed  bool   // by the business
	Batch  int    // BatchSize; default 4
	Remote string // the address of the other system of a Do handler
	Name   string // of the process
	Relays bool   // the process runs a relay instead, on package pgstore

	AckDies   bool // the process kills itself before its first Ack is sent
	AckDiesIn bool // and that after it was sent, and before it is known
	Stops     bool // before a position is moved for the second time, it waits for a line of its input
	StopsNow  bool // and that before the first
}

// The kinds of handlers.
const (
	shapeTx    = "tx"
	shapeBatch = "batch"
	shapeDo    = "do"
)

const (
	attempts = 3 // of Retry
	batch    = 4 // messages
)

// The lines that a process prints.
const (
	saysReady   = "ready"
	saysStopped = "stopped"
)

// TestMain also makes this binary the program of the processes.
func TestMain(m *testing.M) { fleet.Main(m, consume) }

// consume runs the consumer of a plan.
func consume(ctx context.Context, p plan, lines <-chan struct{}) error {
	if p.Relays {
		return p.relay(ctx)
	}
	c, end, err := p.consumer(lines)
	if err != nil {
		return err
	}
	defer end()
	fmt.Println(saysReady)
	return c.Run(ctx)
}

// startFleet starts consumers of a plan, each with a name of its own.
func startFleet(t testing.TB, p plan, size int) *fleet.Fleet {
	t.Helper()
	return fleet.Keep(t, size, func(n int) any {
		p := p
		p.Name = fmt.Sprint("p", n)
		return p
	})
}

// consumer returns the consumer of a plan.
func (p plan) consumer(lines <-chan struct{}) (*inbox.Consumer, func(), error) {
	w, err := open(p.Base, once.Options{Logger: p.logger()}, p.hooks(lines))
	if err != nil {
		return nil, nil, err
	}
	place, err := newWorkplace(p.Name, p.Calls)
	if err != nil {
		return nil, nil, err
	}
	source, end, err := p.Post.source(w.store)
	if err != nil {
		return nil, nil, err
	}
	c := &inbox.Consumer{
		Name: "soak", Source: p.observed(source, place), Checkpoint: p.Check, BatchSize: cmp.Or(p.Batch, batch), Concurrency: 3,
		// Without Outage, because processes that are killed forget what got through.
		Retry: inbox.Retry{Attempts: attempts, First: 10 * time.Millisecond, Limit: 100 * time.Millisecond, Outage: -1},
		// Short, so that the claims of a killed process expire soon.
		Policy:   once.Policy{Lease: time.Second},
		StopTime: 5 * time.Second,
	}
	if p.Pass {
		c.OnParked = inbox.Pass
	}
	if p.Keyed {
		c.Key = key
		c.Input = func(m *broker.Message) []byte { // a copy by the business may be written in another way
			n, _ := noteOf(m)
			return []byte(n.Kind + n.Item)
		}
	}
	switch p.Shape {
	case shapeBatch:
		c.Handler = w.batch(place.handleAll)
	case shapeDo:
		c.Handler = inbox.Do(w.store, &once.Operation[string]{OnUnknown: once.Resend}, place.send(p.Remote))
	default:
		c.Handler = w.tx(place.handle)
	}
	return c, func() { end(); w.Close() }, nil
}

func (p plan) logger() *slog.Logger {
	to := io.Writer(os.Stderr)
	if os.Getenv("ONCE_CONSUME_QUIET") != "" {
		to = io.Discard
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", p.Name)
}

// hooks make the process wait for a line of its input, where the plan says.
func (p plan) hooks(lines <-chan struct{}) hooks {
	if !p.Stops && !p.StopsNow {
		return hooks{}
	}
	moves := 0
	return hooks{transactAt: func(from store.Position) {
		moves++
		if p.StopsNow && moves == 1 || p.Stops && moves == 2 {
			fmt.Println(saysStopped, from.Epoch)
			<-lines
		}
	}}
}

// send returns a handler that sends messages to the other system, with their
// keys.
func (w *workplace) send(address string) func(context.Context, once.Key, *broker.Message) (string, error) {
	client := &http.Client{Timeout: 5 * time.Second}
	return func(ctx context.Context, k once.Key, m *broker.Message) (string, error) {
		n, err := w.begin(m)
		if err != nil {
			return "", err
		}
		body, _ := json.Marshal(order{Name: nameOf(m, n), Ord: n.Ord, Seq: n.Seq, Process: w.process})
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(string(body)))
		if err != nil {
			return "", err
		}
		r.Header.Set("Idempotency-Key", k.String())
		answer, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		return string(text), err
	}
}
