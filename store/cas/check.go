package cas

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/effectively-once/once"
)

// Format is the format of the records that engines store. They keep it and the
// Check of a row beside its fields, and give both to Verify when they read it.
// Records without a format are those of builds that kept no Check. A later format
// is refused, because its fields may mean something else.
const Format = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// lastTime is the last one that all engines can write. Later ones last for ever.
var lastTime = Instant(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMicro())

// Check returns a CRC-32C of all that decides what becomes of the key. The Sum of
// the outcome stands for its body, which lists do not read. The reason is only for
// people. It never changes for a Format, because stored records depend on it.
func (r *Row) Check() uint32 {
	id := r.Key.UUID()
	b := append(make([]byte, 0, 256), id[:]...)
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	text := func(s string) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...) }
	flag := func(is bool) {
		if is {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	number(int64(r.Status))
	number(r.Attempt)
	b = append(append(b, r.Owner[:]...), r.Cause[:]...)
	text(string(r.Fingerprint))
	for _, at := range []Instant{r.Created, r.Updated, r.Lease, r.KeepOutcome, r.KeepKey} {
		if at >= lastTime {
			at = math.MaxInt64
		}
		number(int64(at))
	}
	flag(r.Firm)
	if r.Status == once.Done {
		text(r.Outcome.ContentType)
		flag(r.Outcome.Rejected)
		flag(r.Outcome.Omitted)
		number(int64(r.Outcome.Sum))
	}
	return crc32.Checksum(b, castagnoli)
}

// Verify returns once.ErrCorrupt for a row that is not as it was stored with this
// format and check, which are 0 if the record has none.
func (r *Row) Verify(format int64, check uint32) error {
	var why string
	switch keeps := !r.Open() || r.Firm; {
	case format > Format:
		why = fmt.Sprintf("has the format %d of a newer build, and this one knows none after %d: use the newer one", format, Format)
	case r.Created == 0 || r.Updated == 0 || r.Lease == 0 && r.Open() || r.KeepKey == 0 && keeps:
		why = "lacks a time"
	case format == 0 && check == 0: // of an earlier build
		return nil
	case format != Format || check != r.Check():
		why = fmt.Sprintf("is not what was stored: its format is %d, and its check %08x", format, check)
	default:
		return nil
	}
	return fmt.Errorf("%w: the record of %s %q %s", once.ErrCorrupt, r.Key.Operation, r.Key.ID, why)
}
