package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// answer is what a key has been answered with; the zero answer: nothing yet.
type answer struct {
	value    int64
	rejected bool
}

// attempt is a call of Do, DoTx or InTx: an input of the model, and with its verdict an output as well.
type attempt struct {
	how             string
	client          int
	proposal        answer // what its work returns if it runs
	called, settled int64
	verdict
}

// verdict is what came of an attempt.
type verdict struct {
	fate     fate
	answer   answer
	replayed bool
	err      error
}

// firstAnswer is what [once.Do] and [once.DoTx] promise: what the work of one call returned is the answer, and every
// other call gets it.
var firstAnswer = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{answer{}} },
	Step: func(s, in, out any) []any { return afterAttempt(s.(answer), in.(attempt).proposal, out.(verdict)) },
}).ToModel()

func afterAttempt(known, proposal answer, v verdict) []any {
	none := known == answer{}
	switch {
	case v.fate == unknown && none:
		return []any{known, proposal}
	case v.fate == unknown:
		return []any{known}
	case none && v.answer == proposal && !v.replayed:
		return []any{proposal}
	case !none && v.answer == known && v.replayed:
		return []any{known}
	default:
		return nil
	}
}

// fateOf tells how an attempt ended. Only of Do an error leaves open whether the work happened, unless it says
// that it did not; a transaction says so itself.
func fateOf(err error, inTransaction bool) fate {
	switch {
	case errors.Is(err, once.ErrInProgress), errors.Is(err, errNothingDone):
		return failed
	case err == nil, errors.Is(err, once.ErrRejected):
		return answered
	case inTransaction && !errors.Is(err, once.ErrOutcomeUnknown):
		return failed
	default:
		return unknown
	}
}

// errNothingDone is how work fails that has done nothing.
var errNothingDone = errors.New("nothing done, on purpose")

func checkAnswers(attempts []attempt) error {
	var ops []porcupine.Operation
	for _, a := range attempts {
		if a.fate != failed {
			ops = append(ops, porcupine.Operation{ClientId: a.client, Input: a, Output: a.verdict, Call: a.called, Return: a.settled})
		}
	}
	if porcupine.CheckOperationsTimeout(firstAnswer, ops, checkTime) != porcupine.Ok {
		return fmt.Errorf("no order of these calls has a first answer that all others got:\n%s", told(attempts))
	}
	return nil
}

func told(attempts []attempt) string {
	var b strings.Builder
	for _, a := range slices.SortedFunc(slices.Values(attempts), func(a, b attempt) int { return int(a.called - b.called) }) {
		fmt.Fprintf(&b, "%8d-%-8d client %d: %s that returns %v -> %v %v, replayed %v (%v)\n", a.called, a.settled, a.client,
			a.how, a.proposal, a.fate, a.answer, a.replayed, a.err)
	}
	return b.String()
}
