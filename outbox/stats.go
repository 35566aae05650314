package outbox

import "sync/atomic"

// Stats counts messages by result. The fields may be read at any time.
type Stats struct {
	Published atomic.Int64 // confirmed by the broker
	Failed    atomic.Int64 // attempts that failed while others got through
	Refused   atomic.Int64 // calls of the publisher in which nothing got through
	Held      atomic.Int64 // held for a retry, or because an earlier message is held
	Stuck     atomic.Int64
	Repeated  atomic.Int64 // published, but changed concurrently: possibly published twice
}
