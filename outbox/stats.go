package outbox

import "sync/atomic"

// Stats counts what becomes of messages. The fields may be read at any time.
type Stats struct {
	Published atomic.Int64 // confirmed by the broker
	Failed    atomic.Int64 // attempts that failed while others got through
	Refused   atomic.Int64 // calls of the publisher in which nothing got through
	Held      atomic.Int64 // put aside for another attempt, or behind such a message
	Stuck     atomic.Int64
	Repeated  atomic.Int64 // published, and changed by somebody else meanwhile: they may have been published twice
}
