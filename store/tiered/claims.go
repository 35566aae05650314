package tiered

import (
	"bytes"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// claim is a claim of this process whose settlement has not succeeded yet.
type claim struct {
	rec      once.Record
	settling time.Time // when its settlement was first tried
}

// claims remembers claims. It forgets the oldest if there are very many, or if
// their holders never settle them: their records are then not cached.
type claims struct {
	mu          sync.Mutex
	young, aged map[once.Fence]claim
}

// maxYoung is how many claims come after one before it may be forgotten.
const maxYoung = 8192

func newClaims() *claims { return &claims{young: make(map[once.Fence]claim)} }

// put remembers a claim, whose record may be the caller's.
func (cs *claims) put(c claim) {
	c.rec.Fingerprint = bytes.Clone(c.rec.Fingerprint)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.young) >= maxYoung {
		cs.young, cs.aged = make(map[once.Fence]claim), cs.young
	}
	cs.young[fenceOf(c.rec)] = c
}

// take returns a claim, and forgets it.
func (cs *claims) take(fence once.Fence) (claim, bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, m := range []map[once.Fence]claim{cs.young, cs.aged} {
		if c, ok := m[fence]; ok {
			delete(m, fence)
			return c, true
		}
	}
	return claim{}, false
}

func fenceOf(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}
