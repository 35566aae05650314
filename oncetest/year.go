//go:build go1.25

package oncetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sim"
)

// Service describes a service that [Year] tests. Start and Effects are required.
// The zero values of the other fields are valid.
type Service struct {
	// Start starts one instance of the service, on what the [Instance] gives it. It is
	// called for each instance in the morning and after each kill, so what must
	// survive is in the store, the broker and the systems outside. Several instances
	// run at once. Start does not wait.
	Start func(*Instance) Program

	// Effects are what each request must cause. Rejected requests cause nothing.
	Effects []Effect

	// Request returns the HTTP request that a customer sends, with its idempotency
	// key. It is always the same for an ID. Default: customers call Program.Do.
	Request func(id string) *http.Request

	// Client returns the client with which a customer sends the requests of Request,
	// over a network that fails. It is called for each life of a customer. It is an
	// httponce.Transport, or a client of your own that retries. Default: a request is
	// sent once for each attempt.
	Client func(network http.RoundTripper) http.RoundTripper

	// Message returns a message that a customer publishes instead of a request, for a
	// service that only consumes. It is always the same for an ID.
	Message func(id string) *broker.Message

	// People is how many people decide about what is set aside, while everything goes
	// wrong: they discard and replay parked messages, and hold messages in the outbox.
	// In the evening one of them has all that is left tried again. Systems outside then
	// refuse some requests until a person has settled that: see [ErrRefused].
	// Default: 0, and what is set aside stays there.
	People int

	Days      int // how many days pass; default 365
	Requests  int // new ones of a day; default 4, at most 999
	Instances int // that run at once; default 2

	// Drain is how long after the last fault of a day everything must be done.
	// Default: 1 hour.
	Drain time.Duration

	// Seed is the seed of everything that is drawn. Default: 1. The environment
	// variable ONCETEST_SEED overrides it.
	Seed uint64
}

// Program is what an instance of a service does.
type Program struct {
	// Run lists what runs until its context ends: consumers, relays, reconcilers,
	// janitors.
	Run []func(context.Context) error

	// Do does the work of a request. It is called for each attempt of a customer, and
	// returns the answer. ErrRejected is an answer as well. A customer repeats the
	// call after other errors for which once.MayRetry says so.
	Do func(ctx context.Context, id string) (answer string, err error)

	// Handler handles the requests of Service.Request. A customer repeats a request
	// that is answered with 408, 409, 425, 429 or 5xx. Other statuses from 400 on
	// reject it.
	Handler http.Handler
}

// Effect is one of the effects of a request. It is a row, which
// [Instance.Row] writes, or it happens at a system outside, which [Instance.Call]
// calls.
type Effect struct {
	Name    string
	Promise Promise

	// HonoursKeys has the system ignore a call whose key it has seen. Such calls can
	// also arrive twice.
	HonoursKeys bool

	// Consumer is the name of the consumer that has the effect happen, once for each
	// request, if one does. If a person discards the message there, the effect must not
	// happen later, and the others must.
	Consumer string
}

// Promise is how often an effect happens for a request.
type Promise int

const (
	Once        Promise = iota // exactly once
	AtMostOnce                 // perhaps never: for Park
	AtLeastOnce                // perhaps twice: for Resend without a key
)

// Year lets a service live through a year: 365 days of fake time, in seconds. It
// needs Go 1.25.
//
// Each morning, instances of the service start on a store, a broker and systems
// outside, all in memory. Customers send requests: again when an answer is lost,
// from two windows at once, again on the next days, or they give up. Old messages
// come again. Meanwhile everything goes wrong: calls fail, hang, lose their
// replies, and arrive late or twice; instances are killed, and stall past their
// leases; the store, the broker and the systems go down for minutes. Then the
// faults stop, and everything must come to rest. At night nothing runs.
//
// These laws must hold:
//
//   - effect-once: an effect happens once for each request, or as its Promise says.
//   - one-answer: all attempts at a request get the same answer.
//   - all-or-nothing: a request has all of its effects or none, and none if it was
//     rejected.
//   - nothing-lost: a request that was answered has its effects.
//   - answered: a customer who does not give up gets an answer.
//   - given-up: an effect does not happen after a person has discarded its message.
//   - known: an effect belongs to a request.
//   - run-ended, run-stays: what Program.Run lists returns when its context ends,
//     and not before.
//
// A request that is parked, or has a message on the shelf, in the outbox as stuck, or
// in a queue of dead letters, waits for a person: it breaks neither of the laws
// that say what must happen. The report counts such requests. They are found by
// the ID of the request in the key or the message.
//
// The first day that breaks a law fails the test. It is played again with fewer
// customers, instances and faults, as long as the law breaks. The finding has the
// story of the request on the smallest day, and the way to play it again. If all hold, the log has a report. Everything is
// drawn from one seed, so a break can be played again. Events at the same instant
// have no fixed order: a few breaks need another try. Go 1.25 cannot seed
// crypto/rand, and needs more of them.
//
// Meanwhile the program has one processor, crypto/rand is seeded, and what is
// logged to slog.Default is discarded, so the test is not parallel. The service must not
// wait for anything real, such as a network or a file, and its instances share no
// variables.
func Year(t *testing.T, s Service) {
	t.Helper()
	y, err := s.year()
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	began := time.Now()
	y.found = func(finding string) {
		t.Errorf("oncetest: %s  again:   ONCETEST_SEED=%d go test -run '^%s$'\n", finding, y.Seed, t.Name())
	}
	if y.live(t) {
		t.Logf("oncetest: %s", y.report(time.Since(began)))
	}
}

// year checks the service before anything runs.
func (s Service) year() (*year, error) {
	s.Days, s.Requests, s.Instances = cmp.Or(s.Days, 365), cmp.Or(s.Requests, 4), cmp.Or(s.Instances, 2)
	s.Drain = cmp.Or(s.Drain, time.Hour)
	var err error
	s.Seed, err = overridden(cmp.Or(s.Seed, 1))
	switch {
	case err != nil:
		return nil, err
	case s.Start == nil || len(s.Effects) == 0:
		return nil, errors.New("the Service needs Start and Effects")
	case s.Request != nil && s.Message != nil:
		return nil, errors.New("the Service has Request and Message: give it one of them")
	case s.Client != nil && s.Request == nil:
		return nil, errors.New("the Service has a Client, and no Request that it sends")
	case s.Days < 0 || s.Requests < 0 || s.Requests > 999 || s.Instances < 0 || s.People < 0 || s.Drain < 0:
		return nil, errors.New("the Service has a negative Days, Requests, Instances, People or Drain, or more than 999 Requests")
	}
	y := newYear(s)
	for _, e := range s.Effects {
		if _, twice := y.effects[e.Name]; e.Name == "" || twice {
			return nil, fmt.Errorf("the Service has an effect without a name, or two with the name %q", e.Name)
		}
		y.effects[e.Name] = e
	}
	return y, nil
}

// live runs the year in a bubble of fake time. It reports whether all laws held.
func (y *year) live(t *testing.T) (held bool) {
	defer silenceLogs()()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that a seed has one history
	dog := sim.Watch(y.progress, time.Minute, func(report string) {
		panic(fmt.Sprintf("oncetest: the service waits for something outside of fake time, such as a network or a locked mutex: %s", report))
	})
	defer dog.End()
	sim.Bubble(t, sim.Seed(y.Seed), func() { held = y.run(t) })
	return held
}

// silenceLogs discards what is logged, and returns a function that ends that.
func silenceLogs() func() {
	logger, w, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(io.Discard)
	return func() {
		slog.SetDefault(logger)
		log.SetOutput(w)
		log.SetFlags(flags)
	}
}

// year is a year of a service.
type year struct {
	Service
	*ledger
	effects  map[string]Effect
	progress *atomic.Int64
	shared   shared
	totals   *totals

	// found is called in the bubble, which panics if a goroutine never ends.
	found func(finding string)
}
