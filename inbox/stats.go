package inbox

import "sync/atomic"

// Stats counts messages by result. The fields may be read at any time.
type Stats struct {
	Received   atomic.Int64 // deliveries
	Handled    atomic.Int64 // handled and committed
	Duplicates atomic.Int64 // recognised and not handled
	Prevented  atomic.Int64 // handlers that returned Duplicate
	Failed     atomic.Int64 // attempts that failed
	Shelved    atomic.Int64 // put on the shelf for a retry, or to wait for another message
	Parked     atomic.Int64
	Down       atomic.Int64 // topics of which nothing gets through now; see [Retry]
}
