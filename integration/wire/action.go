package wire

import (
	"math"
	"time"
)

// Action is what is done to a request.
type Action struct {
	delay time.Duration
	drop  bool // the request does not reach the server
	reply fate
	keep  int // bytes of the reply that arrive all the same; negative: all but so many
	late  time.Duration
	then  ending
}

// result is what becomes of a reply.
type fate int

const (
	arrives fate = iota
	lost         // when the server has answered
	unread       // nobody waits for it
)

// ending is what becomes of the connection.
type ending int

const (
	goesOn ending = iota
	closes
	hangs  // both sides stay open and hear nothing, until the client closes its own
	splits // the same, and the server does not hear of the client's end either
)

var (
	// Pass does nothing: its rule only counts.
	Pass = Action{}
	// DropRequest closes the connection before any of the request has reached the server.
	DropRequest = Action{drop: true, then: closes}
	// SwallowReply lets the server answer the request completely, then throws the answer away and closes the connection.
	SwallowReply = Action{reply: lost, then: closes}
	// LeaveServer sends the request to the server and closes the connection without waiting: the server may be working
	// on it while the client tries again.
	LeaveServer = Action{reply: unread, then: closes}
	// HangRequest throws the request away and leaves the connection open and silent, until the client closes it.
	HangRequest = Action{drop: true, then: hangs}
	// HangReply lets the server answer, throws the answer away, and leaves the connection open and silent, until the
	// client closes it.
	HangReply = Action{reply: lost, then: hangs}
	// SplitRequest is HangRequest where the server never hears that the client has gone: its session, and a transaction
	// in it, stay until [Proxy.Cut].
	SplitRequest = Action{drop: true, then: splits}
	// SplitReply is HangReply in the same way.
	SplitReply = Action{reply: lost, then: splits}
)

// CutReply lets the first n bytes of the reply arrive, then closes the connection. If n is negative, all but the last
// -n bytes arrive. The server has answered completely before the first byte arrives.
func CutReply(n int) Action { return Action{reply: lost, keep: n, then: closes} }

// Delay holds the request back for d, and with it what the client sends after it.
func Delay(d time.Duration) Action { return Action{delay: d} }

// DelayReply lets the server answer, and the answer arrive as a whole, d after that.
func DelayReply(d time.Duration) Action { return Action{reply: lost, keep: whole, late: d} }

const whole = math.MaxInt

func (a Action) passes() bool { return a == Pass }

func (a Action) needsReply() bool { return a.reply != arrives }

// rest is the part of the reply that arrives.
func (a Action) rest(reply []byte) []byte {
	n := a.keep
	if n < 0 {
		n += len(reply)
	}
	return reply[:max(0, min(n, len(reply)))]
}
