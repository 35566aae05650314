package demo

import (
	"fmt"
	"slices"
	"strings"
)

// Window is a moment at which something can go wrong. Its name is that of its
// scenario.
type Window struct {
	Name   string `json:"name"`      // of the scenario
	What   string `json:"what"`      // what the demo does to an order
	ByHand string `json:"by_hand"`   // the result in the shop by hand, and why
	Once   string `json:"with_once"` // the result with once, and why
}

// Names of windows.
const (
	doubleClick   = "double-click"
	lostReply     = "lost-reply"
	inTransaction = "crash-in-transaction"
	beforePublish = "crash-before-publish"
	afterPublish  = "crash-after-publish"
	outage        = "outage"
	copied        = "copy"
	raced         = "race"
	lostAck       = "lost-ack"
	afterCharge   = "crash-after-charge"
	inHandler     = "crash-in-handler"
	beforeAck     = "crash-before-ack"
	afterLetter   = "crash-after-letter"
	undisturbed   = ""
)

// Windows are all windows, in the sequence in which an order passes them.
var Windows = []Window{
	{doubleClick, "the customer clicks twice: two processes get the request at the same moment",
		"both check for the order before either has written it, and both write it",
		"both carry the same Idempotency-Key: a unique index lets one of them write, and the other gets its response"},
	{lostReply, "the response is lost, and the client sends the request again",
		"the second request finds the order: checking first is enough here",
		"the second request gets the recorded response"},
	{inTransaction, "the process is killed after it has written the order, before the commit",
		"the database rolls back, and the client sends the request again",
		"the same: key, order and message are one transaction"},
	{beforePublish, "the process is killed after the commit of the order, before its message is published",
		"the client sends the request again, and the shop finds the order: the message is never published, and nobody charges",
		"the message was in the commit: the relay of another process publishes it"},
	{afterPublish, "the process is killed after the broker has the message, before that is recorded",
		"the client sends the request again, and the shop finds the order",
		"the relay publishes the message again, and each consumer recognises its key"},
	{outage, "the broker is down while orders are placed",
		"publishing fails after the commit, and a repeated request finds the order: the message is never published",
		"orders are still accepted, and their messages wait in the outbox"},
	{copied, "the message is delivered again later",
		"the consumers find what they wrote: checking first is enough here",
		"each consumer finds the key of the message"},
	{raced, "two copies of the message are delivered at the same moment",
		"both consumers check before either has written, and both charge",
		"one of them claims the key, and the other waits for it"},
	{lostAck, "the acknowledgement is lost, and the message is delivered again",
		"the consumers find what they wrote",
		"the key was committed with what the consumer wrote"},
	{afterCharge, "the process is killed after the customer is charged, before that is recorded",
		"no record shows the charge: the message is delivered again, and the customer is charged again",
		"the claim was recorded first: the charge is sent again with the same key, and the provider recognises it"},
	{inHandler, "the process is killed in the transaction of a consumer",
		"the database rolls back, and the message is delivered again",
		"the same: the key is in that transaction"},
	{beforeAck, "the process is killed after the commit of a consumer, before its acknowledgement",
		"the message is delivered again, and the consumer finds what it wrote",
		"the message is delivered again, and the consumer finds its key"},
	{afterLetter, "the process is killed after the letter is sent, before that is recorded",
		"the message is delivered again, and the letter is sent again",
		"the mail server cannot be asked whether it was sent: the letter is parked for a person, and not sent twice"},
}

// survived are the windows that do not harm the shop by hand.
var survived = []string{lostReply, inTransaction, afterPublish, copied, lostAck, inHandler, beforeAck}

// Find returns the window of a scenario.
func Find(scenario string) (Window, error) {
	i := slices.IndexFunc(Windows, func(w Window) bool { return w.Name == scenario })
	if i < 0 {
		var names []string
		for _, w := range Windows {
			names = append(names, w.Name)
		}
		return Window{}, fmt.Errorf("there is no scenario %q: choose one of %s", scenario, strings.Join(names, ", "))
	}
	return Windows[i], nil
}

// Explain returns what a scenario shows.
func (w Window) Explain() string {
	return fmt.Sprintf("%s: %s.\n\n  by hand    %s.\n  with once  %s.\n", w.Name, w.What, w.ByHand, w.Once)
}
