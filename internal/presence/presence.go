// Package presence makes IDs of relays whose presence can be seen in one place,
// such as a server: see [store.Presence].
package presence

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/effectively-once/once/internal/name"
)

// Place is a digest of where a presence can be seen: the running server, or the
// file and the machine. The IDs of its relays begin with it, so whoever looks in
// another place does not take them for missing.
type Place [8]byte

// PlaceOf returns the place that has these properties together. None of them
// contains a zero byte.
func PlaceOf(properties ...string) (p Place) {
	h := sha256.New()
	h.Write([]byte("once presence of relays"))
	for _, s := range properties {
		h.Write([]byte{0})
		h.Write([]byte(s))
	}
	copy(p[:], h.Sum(nil))
	return p
}

// NewID returns the ID of a new relay in the place.
func (p Place) NewID() [16]byte {
	id := name.Token()
	copy(id[:], p[:])
	return id
}

// Has reports whether an ID was made for the place.
func (p Place) Has(id [16]byte) bool { return Place(id[:8]) == p }

// Number returns the number of a lock that stands for a relay of a place.
func Number(id [16]byte) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }
