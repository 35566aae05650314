// Package bucket limits rates with token buckets.
package bucket

import "time"

// Rate is a long-term rate and the size of a burst.
type Rate struct {
	PerSecond float64 // in the long run; 0 or less: everything
	Burst     int     // at once; 0 or less: as many as in one second, at least 1
}

func (r Rate) burst() float64 {
	if r.Burst > 0 {
		return float64(r.Burst)
	}
	return max(float64(int(min(r.PerSecond, 1e9))), 1)
}

// Bucket is a token bucket. The zero Bucket is full. It has no lock.
type Bucket struct {
	spent float64
	at    time.Time // when spent was right
}

// Take takes a token, or returns how long to wait for one.
func (b *Bucket) Take(r Rate, now time.Time) (wait time.Duration) {
	if r.PerSecond <= 0 {
		return 0
	}
	b.pass(r, now)
	if missing := b.spent + 1 - r.burst(); missing > 0 {
		return max(time.Duration(min(missing/r.PerSecond, longest.Seconds())*float64(time.Second)), 1) // 0 would let it through
	}
	b.spent++
	return 0
}

const longest = 365 * 24 * time.Hour

// Return undoes a Take.
func (b *Bucket) Return() { b.spent = max(b.spent-1, 0) }

// Full reports whether all tokens are there, as in a new bucket.
func (b *Bucket) Full(r Rate, now time.Time) bool {
	b.pass(r, now)
	return b.spent == 0
}

func (b *Bucket) pass(r Rate, now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.spent = max(min(b.spent, r.burst())-passed.Seconds()*max(r.PerSecond, 0), 0)
		b.at = now
	}
}
