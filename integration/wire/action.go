package wire

import (
	"math"
	"time"
)

// Action is a fault that happens to a request.
type Action struct {
	delay time.Duration // of the request
	drop  bool          // the request does not reach the server
	reply replyFault
	keep  int           // bytes of a lost reply that still arrive; if negative, all but -keep
	late  time.Duration // delay of the bytes that arrive
	then  connFault
}

// replyFault is what happens to a reply.
type replyFault int

const (
	arrives replyFault = iota
	lost               // dropped when the server has answered
	unread             // nobody waits for it
)

// connFault is what happens to the connection afterwards.
type connFault int

const (
	goesOn connFault = iota
	closes
	hangs  // both sides stay open and silent until the client closes
	splits // both sides stay open and silent; the server never hears that the client closed
)

var (
	// Pass does nothing. A rule with it only counts requests.
	Pass = Action{}
	// DropRequest closes the connection before the server gets any of the
	// request.
	DropRequest = Action{drop: true, then: closes}
	// SwallowReply waits for the complete answer, drops it and closes the
	// connection.
	SwallowReply = Action{reply: lost, then: closes}
	// LeaveServer sends the request and closes the connection without waiting
	// for the answer. The server may still execute it while the client tries
	// again.
	LeaveServer = Action{reply: unread, then: closes}
	// HangRequest drops the request and leaves the connection open and silent
	// until the client closes it.
	HangRequest = Action{drop: true, then: hangs}
	// HangReply waits for the answer, drops it, and leaves the connection open
	// and silent until the client closes it.
	HangReply = Action{reply: lost, then: hangs}
	// SplitRequest is HangRequest, but the server never hears that the client
	// closed the connection. Its session, and a transaction in it, remain until
	// [Proxy.Cut].
	SplitRequest = Action{drop: true, then: splits}
	// SplitReply is HangReply, but the server never hears that the client
	// closed the connection.
	SplitReply = Action{reply: lost, then: splits}
)

// CutReply lets the first n bytes of the reply arrive, and then closes the
// connection. If n is negative, all but the last -n bytes arrive. The first
// byte arrives after the server has answered completely.
func CutReply(n int) Action { return Action{reply: lost, keep: n, then: closes} }

// Delay delays the request, and those after it, by d.
func Delay(d time.Duration) Action { return Action{delay: d} }

// DelayReply delays the complete reply by d.
func DelayReply(d time.Duration) Action { return Action{reply: lost, keep: whole, late: d} }

const whole = math.MaxInt

func (a Action) passes() bool { return a == Pass }

func (a Action) needsReply() bool { return a.reply != arrives }

// rest returns the part of the reply that arrives.
func (a Action) rest(reply []byte) []byte {
	n := a.keep
	if n < 0 {
		n += len(reply)
	}
	return reply[:max(0, min(n, len(reply)))]
}
