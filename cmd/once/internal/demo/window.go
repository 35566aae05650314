package demo

import (
	"fmt"
	"slices"
	"strings"
)

// Window is a moment at which something can go wrong, and what the demo does there. Its name is that of the scenario.
type Window struct {
	Name   string `json:"name"`      // of the scenario
	What   string `json:"what"`      // is done to an order
	ByHand string `json:"by_hand"`   // what becomes of it in the shop that was written by hand, and why
	Once   string `json:"with_once"` // what holds with once, and why
}

// The names of windows, as fates of orders.
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

// Windows are all that the demo knows, in the order of the way of an order through the shop.
var Windows = []Window{
	{doubleClick, "the customer clicks twice: two requests at one moment, at two processes",
		"both look whether the order is there before either has written it, and both write it",
		"both have one Idempotency-Key: its unique index lets one of them write, and the other gets the first one's response"},
	{lostReply, "the response is lost, and the customer's program sends the request again",
		"the second request finds the order: looking first is enough here",
		"the second request gets the recorded response"},
	{inTransaction, "the process is killed with the order written and not committed",
		"the database rolls back, and the request is made again",
		"the same: key, order and message are one transaction"},
	{beforePublish, "the process is killed after the commit of the order, before its message is published",
		"the request is made again, finds the order, and answers: the message is never published, and nobody charges",
		"the message was in the commit: another process's relay publishes it"},
	{afterPublish, "the process is killed after the broker took the message, before it has noted that",
		"the request is made again and finds the order",
		"the relay publishes it again, and each consumer knows its key"},
	{outage, "the broker is down while orders are placed",
		"publishing fails after the commit; the request is made again, finds the order, and answers: no message",
		"orders are taken all the same, and their messages wait in the outbox"},
	{copied, "the message comes again later",
		"the consumers find what they wrote: looking first is enough here",
		"each consumer finds the key of the message"},
	{raced, "two copies of the message come at one moment",
		"both look before either has written, and both charge",
		"one of them claims the key, and the other waits for its end"},
	{lostAck, "the acknowledgement of the message is lost, and it comes again",
		"the consumers find what they wrote",
		"the key is in the commit of what the consumer wrote"},
	{afterCharge, "the process is killed when the customer is charged, before it has noted that",
		"nothing says that it was charged: the message comes again, and so does the charge",
		"the claim was written before: the charge is sent again with the same key, and the provider knows it"},
	{inHandler, "the process is killed in the transaction of a consumer",
		"the database rolls back, and the message comes again",
		"the same: the key is in that transaction"},
	{beforeAck, "the process is killed after the commit of a consumer, before its acknowledgement",
		"the message comes again, and the consumer finds what it wrote",
		"the message comes again, and the consumer finds its key"},
	{afterLetter, "the process is killed when the letter is sent, before it has noted that",
		"the message comes again, and so does the letter",
		"nobody can know whether it was sent, and nobody can ask: it is parked for a person, and not sent twice"},
}

// survived are the windows that do a shop by hand no harm.
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

// Explain says what a scenario shows.
func (w Window) Explain() string {
	return fmt.Sprintf("%s: %s.\n\n  by hand    %s.\n  with once  %s.\n", w.Name, w.What, w.ByHand, w.Once)
}
