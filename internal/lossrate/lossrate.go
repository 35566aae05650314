// Package lossrate tells stores whether a claim should expect a new key or a
// duplicate.
package lossrate

import "sync/atomic"

// Rate is how many of the recent claims were lost that might have met a new
// key. A claim that expects a new key costs least if it is one, and a duplicate
// then costs a round trip more. Looking first, or a statement that can claim
// any key, costs a new key more. That pays if more than one key in eight is a
// duplicate. The zero value expects new keys.
type Rate struct{ lost atomic.Int32 } // of all claims, in units of 1/all

const (
	all    = 1 << 16
	window = 16 // how many claims it takes to forget most of the earlier ones
)

// High reports whether more than one recent claim in eight was lost.
func (r *Rate) High() bool { return r.lost.Load() > all/8 }

// Count is not exact: if two claims are counted at once, one may be missed.
func (r *Rate) Count(lost bool) {
	was := r.lost.Load()
	now := was - was/window
	if lost {
		now += all / window
	}
	r.lost.Store(now)
}

// Expect makes the rate as high or as low as it can be.
func (r *Rate) Expect(losses bool) {
	if losses {
		r.lost.Store(all)
	} else {
		r.lost.Store(0)
	}
}
