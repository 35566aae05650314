package world

import "github.com/effectively-once/once/internal/sim"

// The laws. docs/laws.md says which promise each one stands for.
const (
	EffectOnce  sim.Law = "effect-once"
	Vanished    sim.Law = "vanished"
	Appeared    sim.Law = "appeared"
	PublishedIn sim.Law = "publish-order"
	SentOnce    sim.Law = "publish-once"
	HandledIn   sim.Law = "handle-order"
	Blame       sim.Law = "blame"
	Bounded     sim.Law = "bounded"
	Drained     sim.Law = "drained"
	NothingLeft sim.Law = "nothing-left"
	Lease       sim.Law = "lease"
	Age         sim.Law = "age"
	Remembered  sim.Law = "remembered"
	RolledBack  sim.Law = "rolled-back"
	Returns     sim.Law = "returns"
	Wasted      sim.Law = "wasted"
	Held        sim.Law = "held"
	Retired     sim.Law = "retired"
	Protocol    sim.Law = "protocol"
	RunEnded            = sim.RunEnded

	OneAnswer  sim.Law = "one-answer"
	MayRetry   sim.Law = "may-retry"
	Decision   sim.Law = "one-decision"
	Forgotten  sim.Law = "forgotten"
	RetryAfter sim.Law = "retry-after"
)

// Laws returns all laws.
func Laws() []sim.Law {
	return []sim.Law{
		EffectOnce, OneAnswer, MayRetry, RetryAfter, Decision, Lease, Age, Remembered, RolledBack, Returns, Protocol, Forgotten,
		Vanished, Appeared, PublishedIn, SentOnce, HandledIn, Held, Retired, Blame, Bounded, Wasted, Drained, NothingLeft, RunEnded,
	}
}

var says = map[sim.Law]string{
	EffectOnce:  "an effect happens once: a row of a consumer, or an effect at a system that can be asked",
	OneAnswer:   "every caller of a key gets the same answer",
	MayRetry:    "every caller gets an answer, or an error of which MayRetry says rightly whether a repeat can help",
	RetryAfter:  "no client of a server sends a request again before the server has asked for it",
	Decision:    "a decision of a person takes effect once, or says that somebody else has decided",
	Lease:       "a claim is its holder's until its lease has passed, unless the holder gives it up",
	Age:         "a key is never told younger than it is, nor the end of an attempt longer ago than it was",
	Remembered:  "a key whose effect has happened is not told as free before KeepKey has passed",
	RolledBack:  "a transaction that failed has no claim when its caller is told, if the store has answered",
	Returns:     "the caller of a transaction that failed is told within a bound, even if the store does not answer",
	Protocol:    "each change that the store makes is one that the model of the protocol makes",
	Forgotten:   "what may be forgotten, is forgotten",
	Vanished:    "a message whose transaction committed is published and handled by each consumer, or it lies somewhere with a reason",
	Appeared:    "a message whose transaction did not commit is neither published nor handled",
	PublishedIn: "messages of an ordering key are published in the order in which they were put",
	SentOnce:    "a relay that has heard that a message is published does not publish it again while it has its lane",
	HandledIn:   "messages of an ordering key are handled in the order in which they were put",
	Blame:       "a message is set aside only if it failed as often as it may, by itself, and not because something else was down",
	Bounded:     "a message that fails while others get through, or ends its process, is not tried more often than the settings say",
	Wasted:      "a handler with a transaction is not called again after it has succeeded, unless a call about its attempt went wrong",
	Drained:     "when the faults stop, everything is done within a bound",
	NothingLeft: "when all processes have ended, no lease, no running key and no goroutine is left",
	Held:        "a message that a person has parked is not published before a person releases it, and nothing of its key passes it",
	Retired:     "a consumer that is retired handles nothing and keeps no messages, until a person has it continue",
	RunEnded:    "no fault of a network, a server or a process makes Run return an error",
}

// Says returns a law in words.
func Says(l sim.Law) string { return says[l] }
