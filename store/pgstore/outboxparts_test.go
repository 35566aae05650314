package pgstore

import (
	"slices"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

func TestLargeMessagesGoInStatementsOfTheirOwn(t *testing.T) {
	var ms []store.Outgoing
	for _, size := range []int{10, statementBytes + 1, statementBytes - 1, 1, 1, 0} {
		ms = append(ms, store.Outgoing{Message: broker.Message{Body: make([]byte, size)}})
	}
	var got []int
	for some := range parts(ms) {
		got = append(got, len(some))
	}
	if !slices.Equal(got, []int{1, 1, 2, 2}) {
		t.Errorf("the statements have %v messages", got)
	}
	for range parts(ms) {
		break // the iterator allows that
	}
}
