package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// event is a call and its reply.
type event struct {
	call
	reply
}

// clock numbers moments by the microseconds since it was made. No two are equal:
// Porcupine may swap calls of which one ends in the moment in which the other
// begins.
type clock struct {
	made time.Time

	mu   sync.Mutex
	last int64
}

func newClock() *clock { return &clock{made: time.Now()} }

func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, time.Since(c.made).Microseconds())
	return c.last
}

// wasSet returns by how much the machine's clock was set since c was made. The
// clocks of stores go by it, and c does not.
func (c *clock) wasSet() time.Duration {
	now := time.Now()
	return now.Round(0).Sub(c.made.Round(0)) - now.Sub(c.made)
}

// recorder records the calls of concurrent clients.
type recorder struct {
	*clock

	mu     sync.Mutex
	events map[once.Key][]event
	fences map[once.Key][]once.Fence        // fences that were seen; their attempts may be taken over
	asked  map[once.Key][]once.ClaimRequest // claims to repeat
}

func newRecorder() *recorder {
	return &recorder{clock: newClock(), events: map[once.Key][]event{}, fences: map[once.Key][]once.Fence{},
		asked: map[once.Key][]once.ClaimRequest{}}
}

// errLost is the error of a call whose request or reply was lost on purpose: it
// takes effect before it returns, or never. errLate is that of a call that may
// still take effect later.
var (
	errLost = fmt.Errorf("lost on purpose: %w", once.ErrOutcomeUnknown)
	errLate = fmt.Errorf("late on purpose: %w", once.ErrOutcomeUnknown)
)

// record makes a call and records it with its reply. It returns an unexpected
// error.
func (r *recorder) record(k once.Key, c call, do func() (once.Record, error)) error {
	return r.recordEntered(k, c, func(func(once.Record)) (once.Record, error) { return do() })
}

// recordEntered is record for a transaction, which says when its body is called.
func (r *recorder) recordEntered(k once.Key, c call, do func(enter func(once.Record)) (once.Record, error)) error {
	var entering sync.Mutex
	c.called = r.now()
	rec, err := do(func(rec once.Record) {
		entering.Lock()
		defer entering.Unlock()
		c.entry = entry{r.now(), r.now(), rec}
	})
	entering.Lock() // a transaction that is late may call its body at any time
	defer entering.Unlock()
	c.settled = r.now()
	back := reply{rec: rec, err: err, result: c.meaning(err)}
	if back.result == unknown && !errors.Is(err, errLost) && !errors.Is(err, once.ErrConflict) {
		c.settled = never
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[k] = append(r.events[k], event{c, back})
	if fence := (once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}); rec.Owner != [16]byte{} && !slices.Contains(r.fences[k], fence) {
		r.fences[k] = append(r.fences[k], fence)
	}
	if c.req.Owner != [16]byte{} {
		r.asked[k] = append(r.asked[k], c.req)
	}
	if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict) || errors.Is(err, once.ErrLeaseLost) || errors.Is(err, errUndone) || isSilent(err) {
		return nil
	}
	return err
}

// errUndone is returned to roll back a transaction on purpose.
var errUndone = errors.New("rolled back on purpose")

// meaning returns the result of a call with an error. For a transaction, each
// error except ErrOutcomeUnknown means that nothing was committed.
func (c call) meaning(err error) result {
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

// history returns the operations to check. Failures without an effect, and
// reads without an answer, are left out.
func history(events []event) []porcupine.Operation {
	var ops []porcupine.Operation
	for _, e := range events {
		if e.firm {
			ops = append(ops, e.inTwo()...)
			continue
		}
		if e.result == failed || e.result == unknown && e.verb == get {
			continue
		}
		if e.inSteps && e.result == answered {
			ops = append(ops, e.read().operation())
			e.result = unknown
		}
		ops = append(ops, e.operation())
	}
	return ops
}

func (e event) operation() porcupine.Operation {
	return porcupine.Operation{ClientId: e.client, Input: e.call, Output: e.reply, Call: e.called, Return: e.settled}
}

// read returns the read of a claim in steps. Other calls may have come between
// the claim and the read.
func (e event) read() event {
	if !e.inFlight() {
		e.verb = get
	}
	return e
}

const checkTime = time.Minute

// errUndecided is returned for a history that is too long to be checked within
// checkTime. It is neither right nor wrong.
var errUndecided = fmt.Errorf("not decided within %v", checkTime)

// check reports why the events of a key break the contract, or nil.
func check(events []event) error {
	switch porcupine.CheckOperationsTimeout(model, history(events), checkTime) {
	case porcupine.Illegal:
		return &violation{events}
	case porcupine.Unknown:
		return fmt.Errorf("%w: a history of %d calls", errUndecided, len(events))
	}
	return checkInFlight(events)
}

// violation is a history that breaks the contract.
type violation struct{ events []event }

// Error has the whole history. The call that breaks it comes last, where a report
// that is cut short still has it.
func (v *violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no order of these calls keeps the contract:\n%s", transcript(v.events))
	ops := history(v.events)
	_, info := porcupine.CheckOperationsVerbose(model, ops, checkTime)
	longest := slices.MaxFunc(info.PartialLinearizationsOperations()[0], func(a, b []porcupine.Operation) int { return len(a) - len(b) })
	fmt.Fprintf(&b, "the longest order that keeps it has %d of %d operations, these at its end:\n", len(longest), len(ops))
	states := model.Init()
	for n, op := range longest {
		_, states = model.Step(states, op.Input, op.Output)
		if n >= len(longest)-8 {
			b.WriteString(described(op))
		}
	}
	fmt.Fprintf(&b, "then the key may be %v, and this cannot be next:\n", states)
	left := slices.DeleteFunc(ops, func(op porcupine.Operation) bool {
		return slices.ContainsFunc(longest, func(in porcupine.Operation) bool { return in.Call == op.Call })
	})
	b.WriteString(described(slices.MinFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })))
	return b.String()
}

func (s state) String() string {
	text := fmt.Sprintf("%v attempt %d owner %x outcome %q", s.status, s.attempt, s.owner[:3], s.ended.outcome)
	for _, ends := range []struct {
		what string
		span
	}{{"lease", s.lease}, {"outcome", s.outcome}, {"key", s.key}, {"forgotten key", s.forgotten.key}} {
		if ends.span != (span{}) {
			text += fmt.Sprintf(", %s ends in %d-%d", ends.what, ends.from, ends.to)
		}
	}
	return text
}

// checkInFlight returns an error if a claim met a transaction in flight
// although there was none.
func checkInFlight(events []event) error {
	for i, e := range events {
		if e.result != answered || (e.verb != claim && e.verb != transact) || !e.inFlight() {
			continue
		}
		company := false
		for j, other := range events {
			company = company || i != j && other.called <= e.settled && e.called <= other.settled
		}
		if !company {
			return fmt.Errorf("%v reported another transaction in progress, and there was none:\n%s", e.call, transcript(events))
		}
	}
	return nil
}

// transcript describes a history in the order of the calls.
func transcript(events []event) string {
	sorted := slices.SortedFunc(slices.Values(events), func(a, b event) int { return int(a.called - b.called) })
	var b strings.Builder
	for _, e := range sorted {
		b.WriteString(described(e.operation()))
	}
	return b.String()
}

// described returns the line of a call in a transcript.
func described(op porcupine.Operation) string {
	until := fmt.Sprint(op.Return)
	if op.Return == never {
		until = "..."
	}
	return fmt.Sprintf("%8d-%-8s client %d: %v -> %v\n", op.Call, until, op.ClientId, op.Input, op.Output)
}
