package sqlschema

import (
	"bytes"
	"math/bits"
	"time"

	"github.com/effectively-once/once"
)

// NewRecord returns the record of a new key that was claimed, at a time in
// microseconds.
func NewRecord(r once.ClaimRequest, created int64) once.Record {
	at := time.UnixMicro(created)
	return once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease.Truncate(time.Microsecond),
		Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause, Created: at, Updated: at}
}

// Grains is the number of different values of due within a retention. See
// [Grain].
const Grains = 64

// Grain is the unit of due in microseconds for records that are kept this long.
// A claim rounds due up to a multiple. So thousands of rows share one entry of
// the index on due, which PostgreSQL stores in a few bytes for each row. And a
// row that is settled a little later than its claim expected keeps its entry.
func Grain(keep time.Duration) int64 {
	grain := uint64(max(keep.Microseconds()/Grains, 1))
	return 1 << (bits.Len64(grain) - 1)
}

// OpenSQL is the condition of the index on open records in PostgreSQL.
const OpenSQL = `status IN (1, 2, 3)`
