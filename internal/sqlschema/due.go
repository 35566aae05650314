package sqlschema

import (
	"math/bits"
	"time"
)

// Grains is how many times due are told apart within a retention. See [Grain].
const Grains = 64

// Grain is how exactly it is kept when a row is due, in microseconds: a claim rounds its time up to a multiple. So
// thousands of rows share one entry of the index on due, which PostgreSQL then stores in a few bytes for each row, and
// a row that is settled a little later than its claim foresaw keeps its entry.
func Grain(keep time.Duration) int64 {
	grain := uint64(max(keep.Microseconds()/Grains, 1))
	return 1 << (bits.Len64(grain) - 1)
}
