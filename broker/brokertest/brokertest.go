// Package brokertest checks that an adapter keeps the contract of package broker: [broker.Publisher],
// [broker.Source], [broker.Session] and those of the optional interfaces that it has.
//
// [Run] is the suite for the author of an adapter. Every [Case] names the rule that it checks. What the suite cannot
// show is what depends on the broker alone: how durable a confirmation is, and how it fails over.
//
// Cases are added in minor releases: an adapter that passed may then be found to break a rule that it always broke.
package brokertest

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// Harness is how the suite gets at a broker.
type Harness struct {
	// Fresh makes a new, empty place: what is published to Topic arrives at Source. Every call makes another one.
	// It is called by the test's own goroutine, once for each case. The suite closes the sessions that it opens; the
	// rest is for the Cleanup of Fresh.
	Fresh func(t testing.TB) Place

	// Restart breaks all connections, by killing the broker and starting it again if that is possible, and returns when
	// it can be connected to again. nil: the cases that need it are skipped, with a line that says so.
	Restart func(t testing.TB)

	// Confirms declares that an unroutable message is an error of Publish.
	Confirms bool

	// Patience is how long the suite waits for something that must happen. Default 30 seconds.
	Patience time.Duration

	// Quiet is how long the suite listens for something that must not happen. A longer time sees more. Default 300
	// milliseconds.
	Quiet time.Duration
}

// Place is where the messages of one case go and come from.
type Place struct {
	Publisher broker.Publisher
	Source    broker.Source
	Topic     string

	// DeadLetters returns the messages that were rejected. nil: the broker keeps none.
	DeadLetters func(t testing.TB) []*broker.Message

	// NoReason declares that dead letters cannot carry the reason. Undeclared, one of their headers has it.
	NoReason bool

	// Unroutable is a topic that no queue takes. Empty: it cannot be told.
	Unroutable string

	// Log declares that deliveries have positions. Sessions may then have partitions for themselves, which move when
	// others come and go, and what was acknowledged may come again if what stands before it was not.
	Log bool
}

// Case checks one rule of the contract.
type Case struct {
	Name string
	Rule string // in the words of the contract, or close to them

	harness Harness
	check   func(*bench)
}

// Check reports how the rule is broken, or nil; or why the case was skipped. It may be called repeatedly, at a fresh
// place each time.
func (c Case) Check(tb testing.TB) (skipped string, err error) {
	tb.Helper()
	return inCase(tb, c.harness, c.check)
}

// Run checks an adapter. Each case is a subtest. A test of an adapter is no more than
//
//	func TestConformance(t *testing.T) {
//		brokertest.Run(t, brokertest.Harness{
//			Fresh: func(tb testing.TB) brokertest.Place {
//				queue := declare(tb)
//				return brokertest.Place{Publisher: r.Publisher(""), Source: r.Queue(queue), Topic: queue}
//			},
//		})
//	}
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range Cases(h) {
		t.Run(c.Name, func(t *testing.T) {
			skipped, err := c.Check(t)
			switch {
			case err != nil:
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			case skipped != "":
				t.Skip(skipped)
			}
		})
	}
}

// Cases are the cases of [Run], for those who run them in another way. They are in the order in which the author of a
// new adapter wants to see them pass.
func Cases(h Harness) []Case {
	var cases []Case
	for _, group := range [][]rule{messageRules(), publishRules(), receiveRules(), settleRules(), sessionRules(),
		orderRules(), logRules(), restartRules()} {
		for _, r := range group {
			cases = append(cases, Case{Name: r.name, Rule: r.rule, harness: h, check: r.check})
		}
	}
	return cases
}

type rule struct {
	name, rule string
	check      func(*bench)
}

func (h Harness) patience() time.Duration {
	if h.Patience <= 0 {
		return 30 * time.Second
	}
	return h.Patience
}

func (h Harness) quiet() time.Duration {
	if h.Quiet <= 0 {
		return 300 * time.Millisecond
	}
	return h.Quiet
}
