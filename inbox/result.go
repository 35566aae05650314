package inbox

import (
	"time"

	"github.com/effectively-once/once/observe"
)

// result says what happened to an item.
type result struct {
	kind   resultKind
	after  time.Duration // delay before the next try, if kind is again or failing
	reason string        // why the item is not handled
	alone  bool          // of several items that were taken together, it is only the first one's
}

type resultKind int

// A processor returns one of these. resolve turns failing, blocked and toPark
// into one of the others.
const (
	again     resultKind = iota // not settled: it is tried again in this process
	handled                     // committed
	prevented                   // the handler returned Duplicate, and that is recorded
	duplicate                   // it was handled before
	failing                     // an attempt failed: it is retried, in this process or from the shelf
	blocked                     // it waits on the shelf for another message of its ordering key
	toPark                      // it fails for good
	shelved                     // it is on the shelf, and has attempts left
	parked                      // it waits for a person
	reread                      // its partition is read again, so it is delivered again
)

// holdsUp reports whether later items of the same lane wait for this one.
func (r result) holdsUp() bool {
	return r.kind == again || r.kind == failing || r.kind == toPark
}

// needsShelf reports whether resolve may put the item on the shelf.
func (r result) needsShelf() bool {
	return r.kind == failing || r.kind == blocked || r.kind == toPark
}

// observed is the result as an Observer gets it.
func (r result) observed() HandlingResult {
	e := HandlingResult{Outcome: observe.Retried, Reason: r.reason}
	switch r.kind {
	case handled:
		e.Outcome = observe.Handled
	case prevented:
		e.Outcome = observe.Prevented
	case duplicate:
		e.Outcome = observe.Duplicate
	case shelved:
		e.Outcome = observe.Shelved
	case parked:
		e.Outcome = observe.Parked
	}
	if r.reason == errBlocked.Error() { // nothing is wrong with this message
		e.Reason = ""
	}
	return e
}

// count adds the result to the Stats.
func (s *Stats) count(r result) {
	switch r.kind {
	case handled:
		s.Handled.Add(1)
	case prevented:
		s.Prevented.Add(1)
	case duplicate:
		s.Duplicates.Add(1)
	case shelved:
		s.Shelved.Add(1)
	case parked:
		s.Parked.Add(1)
	}
}

// repeated returns the same result for each item.
func repeated(r result, items []*item) []result {
	results := make([]result, len(items))
	for i := range results {
		results[i] = r
	}
	return results
}

// merge copies the results of chosen items to their places among the results of
// all items. Both lists of items are in the same order.
func merge(results []result, items, chosen []*item, of []result) {
	for i, it := range items {
		if len(of) > 0 && it == chosen[0] {
			results[i], chosen, of = of[0], chosen[1:], of[1:]
		}
	}
}
