// Package brokertest checks that an adapter keeps the contract of package broker:
// [broker.Publisher], [broker.Source], [broker.Session] and the optional
// interfaces that it implements.
//
// [Run] is the suite for authors of adapters. Every [Case] states the rule that
// it checks. The suite cannot check what depends on the broker alone, such as
// the durability of a confirmation and failover.
//
// Minor releases add cases, and may so find an adapter that has always broken a
// rule.
package brokertest

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// Harness gives the suite access to a broker.
type Harness struct {
	// Fresh creates a new, empty place: messages that are published to Topic
	// arrive at Source. It is called once for each case, from the goroutine of
	// the test. The suite closes the sessions that it opens. Fresh registers a
	// Cleanup for everything else.
	Fresh func(t testing.TB) Place

	// Restart kills and restarts the broker, or else breaks all connections. It
	// returns when the broker accepts connections again. If Restart is nil, the
	// cases that need it are skipped.
	Restart func(t testing.TB)

	// Confirms declares that Publish returns an error for an unroutable message.
	Confirms bool

	// Patience is how long the suite waits for something that must happen.
	// Default: 30 seconds.
	Patience time.Duration

	// Quiet is how long the suite watches for something that must not happen. A
	// longer time detects more. Default: 300 milliseconds.
	Quiet time.Duration
}

// Place is where one case publishes messages and receives them.
type Place struct {
	Publisher broker.Publisher
	Source    broker.Source
	Topic     string

	// DeadLetters returns the rejected messages. It is nil if the broker keeps
	// none.
	DeadLetters func(t testing.TB) []*broker.Message

	// NoReason declares that dead letters have no header with the reason.
	NoReason bool

	// Unroutable is a topic that no queue takes, if the broker has such topics.
	Unroutable string

	// MaxBody is the size of the largest body that the broker carries, of any
	// bytes, if that is less than 1 MiB.
	MaxBody int

	// OneByOne declares that a message of an ordering key is delivered only after
	// the earlier ones are settled.
	OneByOne bool

	// Unordered declares that the broker does not keep the order of an ordering
	// key.
	Unordered bool

	// Log declares that deliveries have positions. Each session may then own
	// partitions, which move when sessions open and close. An acknowledged
	// message may come again if an earlier one was not acknowledged.
	Log bool

	// KeyRepeats declares that a message which comes again brings the later ones
	// of its ordering key with it, also acknowledged ones.
	KeyRepeats bool
}

// Case checks one rule of the contract.
type Case struct {
	Name string
	Rule string // the rule, close to the words of the contract

	harness Harness
	check   func(*bench)
}

// Check returns an error if the adapter breaks the rule, or the reason why the
// case was skipped. It may be called repeatedly and uses a fresh place each time.
func (c Case) Check(tb testing.TB) (skipped string, err error) {
	tb.Helper()
	return inCase(tb, c.harness, c.check)
}

// Run checks an adapter. Each case is a subtest. The test of an adapter is short:
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

// Cases returns the cases of [Run]. They are in an order in which a new adapter
// can be made to pass them.
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
