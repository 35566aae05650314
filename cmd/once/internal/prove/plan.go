package prove

import (
	"math/rand/v2"
	"time"
)

// step is what happens to a request. The seed decides it.
type step struct {
	double bool      // it is sent to two copies at once
	lose   lostReply // of its first attempt
	after  time.Duration

	kills  []time.Duration // after the request is sent: copies are killed
	breaks []brokenAt      // connections are cut, or replies swallowed
}

// lostReply says how the sender misses a reply.
type lostReply int

const (
	arrives  lostReply = iota
	hungUp             // it closes the connection while it waits
	unread             // it does not look at the reply
	doubleIn = 4       // one in so many requests is sent twice at once
)

// brokenAt is a fault between the program and one of its servers.
type brokenAt struct {
	after   time.Duration
	server  int
	swallow bool // a reply; otherwise all connections are cut
	commit  bool // swallow: the reply to a commit
}

// soon bounds the delay between a request and its fault: most requests are under way
// then.
const soon = 30 * time.Millisecond

// plan draws the steps of a round.
func plan(o Options, round uint64) []step {
	dice := rand.New(rand.NewPCG(o.Seed, round))
	delay := func() time.Duration { return time.Duration(dice.Int64N(int64(soon))) }
	steps := make([]step, o.Requests)
	for i := range steps {
		steps[i].double = dice.IntN(doubleIn) == 0
	}
	for i, at := range spread(dice, o.Requests, o.Lost) {
		steps[at].lose, steps[at].after = []lostReply{hungUp, unread}[i%2], delay()
	}
	for range o.Kills {
		at := dice.IntN(o.Requests)
		steps[at].kills = append(steps[at].kills, delay())
	}
	if len(o.Servers) == 0 {
		return steps
	}
	for i := range o.Cuts {
		at := dice.IntN(o.Requests)
		steps[at].breaks = append(steps[at].breaks, brokenAt{after: delay(), server: i % len(o.Servers)})
	}
	for i := range o.Swallowed {
		at := dice.IntN(o.Requests)
		steps[at].breaks = append(steps[at].breaks,
			brokenAt{after: delay(), server: i % len(o.Servers), swallow: true, commit: i%2 == 0})
	}
	return steps
}

// spread draws n different numbers below limit, or all of them.
func spread(dice *rand.Rand, limit, n int) []int { return dice.Perm(limit)[:min(n, limit)] }
