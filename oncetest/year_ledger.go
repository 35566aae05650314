//go:build go1.25

package oncetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/memstore"
)

// The laws of a year. Year says them in words.
const (
	lawEffectOnce   sim.Law = "effect-once"
	lawOneAnswer    sim.Law = "one-answer"
	lawAllOrNothing sim.Law = "all-or-nothing"
	lawNothingLost  sim.Law = "nothing-lost"
	lawAnswered     sim.Law = "answered"
	lawKnown        sim.Law = "known"
	lawGivenUp      sim.Law = "given-up"
	lawRunStays     sim.Law = "run-stays"
)

// says has the words of a finding for each law.
var says = map[sim.Law]string{
	lawEffectOnce:   "an effect happened more often than it may",
	lawOneAnswer:    "two attempts at one request got different answers",
	lawAllOrNothing: "a request has some of its effects and not the others",
	lawNothingLost:  "a request was accepted, and its effects did not happen",
	lawAnswered:     "a customer who does not give up got no answer",
	lawKnown:        "an effect belongs to no request",
	lawGivenUp:      "an effect happened after a person had given it up",
	sim.RunEnded:    "what Program.Run lists ended before its context",
	lawRunStays:     "what Program.Run lists did not return after its context ended",
}

// requestState is what is known of a request. It is guarded by the mutex of the ledger.
type requestState struct {
	id       string
	answer   *answer // the first one that a customer got
	told     string  // the last error that a customer got
	gaveUp   bool
	waits    bool           // for a person
	happened map[string]int // effects, by name

	excused   map[string]bool      // consumers of which a person may have given up a message; "": of all
	givenUp   map[string]time.Time // consumers of which a person has given up the message
	settled   bool                 // no system refuses it any more
	unclaimed bool                 // a call arrived from outside of guarded work
}

// answer is a final answer to a request.
type answer struct {
	text     string
	rejected bool
}

// ledger is what the year knows of its requests.
type ledger struct {
	mu       sync.Mutex
	requests map[string]*requestState
	pending  map[*memstore.Tx][]row
	seen     map[string]bool   // keys at the systems that honour them, by effect
	claims   map[once.Key]bool // under which a call has arrived
	world    *sim.World        // of today, which is told of broken laws
}

// row becomes an effect when its transaction commits.
type row struct{ effect, id string }

func newLedger() *ledger {
	return &ledger{requests: make(map[string]*requestState), pending: make(map[*memstore.Tx][]row), seen: make(map[string]bool),
		claims: make(map[once.Key]bool)}
}

// add makes a request known.
func (l *ledger) add(id string) *requestState {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &requestState{id: id, happened: make(map[string]int),
		excused: make(map[string]bool), givenUp: make(map[string]time.Time)}
	l.requests[id] = r
	return r
}

// within records what happens if a transaction commits.
func (l *ledger) within(tx *memstore.Tx, r row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[tx] = append(l.pending[tx], r)
}

// committed is told of each transaction that commits.
func (y *year) committed(tx *memstore.Tx) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, r := range y.pending[tx] {
		y.happens(r)
	}
	delete(y.pending, tx)
}

// called is told of each call that arrives at a system.
func (y *year) called(r row, key string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	at := r.effect + " " + key
	if y.effects[r.effect].HonoursKeys && key != "" && y.seen[at] {
		return
	}
	y.seen[at] = true
	y.happens(r)
}

// happens judges that an effect happens. It is called with the mutex held.
func (y *year) happens(r row) {
	e, declared := y.effects[r.effect]
	req := y.requests[r.id]
	switch {
	case !declared:
		y.world.Broke(lawKnown, r.id, "the effect %q is not in Service.Effects", r.effect)
		return
	case req == nil:
		y.world.Broke(lawKnown, r.id, "the effect %q has an ID that is none of a request", r.effect)
		return
	}
	y.totals.effects++
	req.happened[r.effect]++
	y.world.Tell(sim.Line{What: toldEffect, About: r.id, Note: r.effect})
	if n := req.happened[r.effect]; n > 1 && e.Promise != AtLeastOnce {
		y.world.Broke(lawEffectOnce, r.id, "%q happened %d times", r.effect, n)
	}
	if at, ok := req.givenUp[e.Consumer]; ok && e.Consumer != "" && time.Since(at) > sure {
		y.world.Broke(lawGivenUp, r.id, "%q happened %v after a person had discarded the message at consumer %q", r.effect,
			time.Since(at).Round(time.Second), e.Consumer)
	}
	if req.answer != nil && req.answer.rejected {
		y.world.Broke(lawAllOrNothing, r.id, "%q happened, and the request was rejected: %s", r.effect, req.answer.text)
	}
}

// hears judges that a customer got an answer.
func (y *year) hears(r *requestState, a answer) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.totals.answers++
	if r.answer == nil {
		r.answer = &a
		if some := r.some(); a.rejected && len(some) > 0 {
			y.world.Broke(lawAllOrNothing, r.id, "%s happened, and the request was rejected: %s", strings.Join(some, ", "), a.text)
		}
		return
	}
	if *r.answer != a {
		y.world.Broke(lawOneAnswer, r.id, "first %s, and then %s", *r.answer, a)
	}
}

func (a answer) String() string {
	if a.rejected {
		return fmt.Sprintf("rejected: %.200q", a.text)
	}
	return fmt.Sprintf("%.200q", a.text)
}

// some returns the effects of a request that happened.
func (r *requestState) some() (all []string) {
	for name := range r.happened {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// missing returns the effects of a request that must still happen, if any does.
func (y *year) missing(r *requestState) (all []string) {
	for _, e := range y.Effects {
		if e.Promise != AtMostOnce && r.happened[e.Name] == 0 && !r.excuses(e) {
			all = append(all, e.Name)
		}
	}
	return all
}

// unfinished returns the law that a request would break if nothing happened to it
// any more, and why.
func (y *year) unfinished(r *requestState) (law sim.Law, why string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	missing := strings.Join(y.missing(r), ", ")
	switch {
	case r.answer == nil && !r.gaveUp:
		return lawAnswered, "the last attempt got: " + r.told
	case missing == "" || r.answer != nil && r.answer.rejected:
		return "", ""
	case r.answer != nil:
		return lawNothingLost, fmt.Sprintf("the answer was %s, and %s did not happen", *r.answer, missing)
	case len(r.happened) > 0:
		return lawAllOrNothing, fmt.Sprintf("%s happened, and %s did not", strings.Join(r.some(), ", "), missing)
	}
	return "", ""
}
