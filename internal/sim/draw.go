package sim

import "time"

// Seed determines everything that happens in a world.
type Seed uint64

// Draw is the chance of one decision.
type Draw struct{ state uint64 }

const (
	hashOffset = 14695981039346656037 // of FNV-1a
	hashPrime  = 1099511628211
)

// Draw returns the chance of the decision that parts identify.
func (s Seed) Draw(parts ...string) Draw {
	h := uint64(hashOffset)
	for range 8 {
		h = (h ^ uint64(s)&0xff) * hashPrime
		s >>= 8
	}
	for _, part := range parts {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * hashPrime
		}
		h = (h ^ 0xff) * hashPrime // no part has this byte, so parts do not run into each other
	}
	return Draw{h}
}

// nth returns the chance of the n-th decision of this kind.
func (d Draw) Nth(n int) Draw { return Draw{d.state ^ mix(uint64(n)+1)} }

// next is SplitMix64.
func (d *Draw) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	return mix(d.state)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Float returns a number from 0 up to 1.
func (d *Draw) Float() float64 { return float64(d.next()>>11) / (1 << 53) }

// Chance returns true with a probability.
func (d *Draw) Chance(p float64) bool { return d.Float() < p }

// Number returns a number from 0 up to n, without n.
func (d *Draw) Number(n int) int { return int(d.next() % uint64(max(n, 1))) }

// Between returns a duration, to the nanosecond.
func (d *Draw) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.next()%uint64(max(most-least, 1)))
}

// Token returns 16 bytes that are not all zero.
func (d *Draw) Token() (t [16]byte) {
	for i := range t {
		t[i] = byte(d.next())
	}
	t[0] |= 1
	return t
}

// Some returns p or, in half of the cases, 0, so that many worlds are free of a
// fault that would hide another.
func (d *Draw) Some(p float64) float64 {
	if d.Chance(.5) {
		return p
	}
	return 0
}
