package inbox

import (
	"sync"

	"github.com/effectively-once/once"
)

// knownEnds are attempts at effects that have ended, as far as this process knows.
// The store may not: if it did not answer for so long that their claims have lapsed,
// it has them for attempts whose process is gone.
type knownEnds struct {
	mu   sync.Mutex
	last map[once.Key]int64 // the latest attempt
}

// mostKnownEnds bounds the memory in an outage in which many messages fail.
const mostKnownEnds = 10_000

// add records that an attempt has ended.
func (e *knownEnds) add(k once.Key, attempt int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil || len(e.last) >= mostKnownEnds {
		e.last = make(map[once.Key]int64) // what is forgotten is only less well known
	}
	e.last[k] = max(e.last[k], attempt)
}

// has reports whether the latest attempt in a record has ended.
func (e *knownEnds) has(rec once.Record) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last[rec.Key] == rec.Attempt && rec.Attempt > 0
}

// forget is called when nothing more is to be known of a key.
func (e *knownEnds) forget(k once.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, k)
}
