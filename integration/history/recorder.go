package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// event is a call and what came of it.
type event struct {
	call
	reply
}

// recorder collects what clients do at the same time.
type recorder struct {
	begun time.Time

	mu     sync.Mutex
	events map[once.Key][]event
	holds  map[once.Key][]once.Fence        // those that were seen, and with them the attempts that may be taken over
	asked  map[once.Key][]once.ClaimRequest // claims to repeat
}

func newRecorder() *recorder {
	return &recorder{begun: time.Now(), events: map[once.Key][]event{}, holds: map[once.Key][]once.Fence{},
		asked: map[once.Key][]once.ClaimRequest{}}
}

func (r *recorder) now() int64 { return time.Since(r.begun).Microseconds() }

// errLost is a request or a reply that was lost on purpose: what it asked for happens now or never.
// errLate is one that may still arrive.
var (
	errLost = fmt.Errorf("lost on purpose: %w", once.ErrOutcomeUnknown)
	errLate = fmt.Errorf("late on purpose: %w", once.ErrOutcomeUnknown)
)

// record makes a call and keeps what came of it. It returns the error if it is one that nobody expects.
func (r *recorder) record(k once.Key, c call, do func() (once.Record, error)) error {
	c.called = r.now()
	rec, err := do()
	c.settled = r.now()
	back := reply{rec: rec, err: err, fate: c.meaning(err)}
	if back.fate == unknown && !errors.Is(err, errLost) && !errors.Is(err, once.ErrConflict) {
		c.settled = never
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[k] = append(r.events[k], event{c, back})
	if fence := (once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}); rec.Owner != [16]byte{} && !slices.Contains(r.holds[k], fence) {
		r.holds[k] = append(r.holds[k], fence)
	}
	if c.req.Owner != [16]byte{} {
		r.asked[k] = append(r.asked[k], c.req)
	}
	if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict) || errors.Is(err, once.ErrLeaseLost) || errors.Is(err, errUndone) {
		return nil
	}
	return err
}

// errUndone is how a transaction is rolled back on purpose.
var errUndone = errors.New("rolled back on purpose")

// meaning is what an error tells about a call. For a transaction, every error but ErrOutcomeUnknown means that nothing was committed.
func (c call) meaning(err error) fate {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errUndone), c.verb == transact && !errors.Is(err, once.ErrOutcomeUnknown):
		return failed
	case errors.Is(err, once.ErrLeaseLost):
		return refused
	default:
		return unknown
	}
}

// history is what is checked of a key: failures without an effect, and reads without an answer, are left out.
func history(events []event) []porcupine.Operation {
	var ops []porcupine.Operation
	for _, e := range events {
		if e.fate == failed || e.fate == unknown && e.verb == get {
			continue
		}
		if e.inSteps && e.fate == answered {
			ops = append(ops, e.read().operation())
			e.fate = unknown
		}
		ops = append(ops, e.operation())
	}
	return ops
}

func (e event) operation() porcupine.Operation {
	return porcupine.Operation{ClientId: e.client, Input: e.call, Output: e.reply, Call: e.called, Return: e.settled}
}

// read is what a claim in steps has seen, which somebody else may have changed since it claimed.
func (e event) read() event {
	if !e.inFlight() {
		e.verb = get
	}
	return e
}

const checkTime = time.Minute

// check reports why the events of a key break the contract, or nil.
func check(events []event) error {
	switch porcupine.CheckOperationsTimeout(model, history(events), checkTime) {
	case porcupine.Illegal:
		return fmt.Errorf("no order of these calls keeps the contract:\n%s", transcript(events))
	case porcupine.Unknown:
		return fmt.Errorf("a history of %d calls is too long to be decided", len(events))
	}
	return checkInFlight(events)
}

// checkInFlight reports a claim that was put off although nobody else was there.
func checkInFlight(events []event) error {
	for i, e := range events {
		if e.fate != answered || (e.verb != claim && e.verb != transact) || !e.inFlight() {
			continue
		}
		company := false
		for j, other := range events {
			company = company || i != j && other.called <= e.settled && e.called <= other.settled
		}
		if !company {
			return fmt.Errorf("%v was told of another transaction, and there was none:\n%s", e.call, transcript(events))
		}
	}
	return nil
}

// transcript is a history for people, in the order of the calls.
func transcript(events []event) string {
	sorted := slices.SortedFunc(slices.Values(events), func(a, b event) int { return int(a.called - b.called) })
	var b strings.Builder
	for _, e := range sorted {
		until := fmt.Sprint(e.settled)
		if e.settled == never {
			until = "..."
		}
		fmt.Fprintf(&b, "%8d-%-8s client %d: %v -> %v\n", e.called, until, e.client, e.call, e.reply)
	}
	return b.String()
}
