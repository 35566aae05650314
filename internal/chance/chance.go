// Package chance draws the random numbers of the library: jitter, samples, and
// the order in which work that competes is tried. They come from crypto/rand,
// which a test can seed with testing/cryptotest. The functions of math/rand/v2
// that draw from its global generator cannot be seeded.
//
// Nothing is kept between two draws, so that a seed gives the same numbers
// whatever ran before.
package chance

import (
	"crypto/rand"
	"encoding/binary"
)

// N returns a number from 0 to n-1, each with the same chance. It panics if n is
// less than 1.
func N[Int ~int | ~int64](n Int) Int {
	if n < 1 {
		panic("chance: N of less than 1")
	}
	for limit := uint64(n); ; {
		drawn := draw()
		rest := drawn % limit
		if drawn-rest <= -limit { // else its multiple of n is not whole, and a low rest had a better chance
			return Int(rest)
		}
	}
}

// Shuffle orders n elements at random. It exchanges two of them with swap.
func Shuffle(n int, swap func(i, k int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, N(i+1))
	}
}

// Perm returns the numbers from 0 to n-1 in random order.
func Perm(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	Shuffle(n, func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all
}

func draw() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it ends the program rather than return an error
	return binary.LittleEndian.Uint64(b[:])
}
