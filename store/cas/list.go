package cas

import (
	"slices"

	"github.com/effectively-once/once"
)

// Selects reports whether a query selects a record that was read now. It ignores After, Limit and
// UUID.
func Selects(q once.RecordQuery, rec once.Record, now Now) bool {
	return rec.Attempt > 0 && (q.Operation == "" || q.Operation == rec.Key.Operation) &&
		(q.Cause == [16]byte{} || q.Cause == rec.Cause) &&
		(len(q.Scopes) == 0 || slices.Contains(q.Scopes, rec.Key.Scope)) &&
		(len(q.Status) == 0 || slices.Contains(q.Status, rec.Status)) &&
		(q.Unchanged <= 0 || now.AtLeastSince(Instant(rec.Updated.UnixMicro())) >= q.Unchanged)
}

// AsksOnlyForOpen reports whether a query can only select records that are
// Running, Unknown or Parked.
func AsksOnlyForOpen(q once.RecordQuery) bool {
	return len(q.Status) > 0 && !slices.ContainsFunc(q.Status, func(is once.Status) bool { return is < once.Running || is > once.Parked })
}
