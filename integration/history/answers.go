package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// answer is the answer of a key. The zero answer is none yet.
type answer struct {
	value    int64
	rejected bool
}

// attempt is a call of Do, DoTx or InTx. It is an input of the model, and its
// verdict is an output.
type attempt struct {
	how             string
	client          int
	proposal        answer // returned by its work if it runs
	called, settled int64
	verdict
}

// verdict is the result of an attempt.
type verdict struct {
	result   result
	answer   answer
	replayed bool
	err      error
}

// firstAnswer is the promise of [once.Do] and [once.DoTx]: the work of one call
// returns the answer, and each other call returns the same one.
var firstAnswer = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{answer{}} },
	Step: func(s, in, out any) []any { return afterAttempt(s.(answer), in.(attempt).proposal, out.(verdict)) },
}).ToModel()

func afterAttempt(known, proposal answer, v verdict) []any {
	none := known == answer{}
	switch {
	case v.result == unknown && none:
		return []any{known, proposal}
	case v.result == unknown:
		return []any{known}
	case none && v.answer == proposal && !v.replayed:
		return []any{proposal}
	case !none && v.answer == known && v.replayed:
		return []any{known}
	default:
		return nil
	}
}

// resultOf returns how an attempt ended. An error of Do leaves open whether the
// work happened, unless it says that it did not. An error of a transaction says
// so itself.
func resultOf(err error, inTransaction bool) result {
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

// errNothingDone is returned by work that has done nothing.
var errNothingDone = errors.New("nothing done, on purpose")

func checkAnswers(attempts []attempt) error {
	var ops []porcupine.Operation
	for _, a := range attempts {
		if a.result != failed {
			ops = append(ops, porcupine.Operation{ClientId: a.client, Input: a, Output: a.verdict, Call: a.called, Return: a.settled})
		}
	}
	switch porcupine.CheckOperationsTimeout(firstAnswer, ops, checkTime) {
	case porcupine.Illegal:
		return fmt.Errorf("no order of these calls has a first answer that all others got:\n%s", told(attempts))
	case porcupine.Unknown:
		return fmt.Errorf("%w: %d attempts", errUndecided, len(attempts))
	}
	return nil
}

func told(attempts []attempt) string {
	var b strings.Builder
	for _, a := range slices.SortedFunc(slices.Values(attempts), func(a, b attempt) int { return int(a.called - b.called) }) {
		fmt.Fprintf(&b, "%8d-%-8d client %d: %s that returns %v -> %v %v, replayed %v (%v)\n", a.called, a.settled, a.client,
			a.how, a.proposal, a.result, a.answer, a.replayed, a.err)
	}
	return b.String()
}
